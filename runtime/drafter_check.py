"""Does what a manifest says of its drafter fit its graphs?"""

from collections.abc import Sequence

from quatrain.runtime.manifest_records import Manifest, TensorInfo

__all__ = ["find_bad_drafter"]


def find_bad_drafter(manifest: Manifest) -> str | None:
    """The first thing about a drafter that cannot be, or None."""
    names = [graph.name for graph in manifest.graphs if graph.role == "drafter"]
    if manifest.drafter is None:
        return f"a graph that nothing refers to: {names[0]}" if names else None
    if manifest.exits is not None:
        return "both exits and a drafter"
    if names != [manifest.drafter.graph]:
        return f"the drafter {manifest.drafter.graph}, and graphs of that role: {names or 'none'}"
    decoder = next((graph for graph in manifest.graphs if graph.role == "decoder"), None)
    if decoder is None:
        return "a drafter without a decoder"
    for variant in (decoder, decoder.deployment):
        hidden = _find(variant.outputs, "hidden")
        if hidden is None or len(hidden.shape) != 3 or not isinstance(hidden.shape[2], int):
            return f"no states among the outputs of {variant.path}, for a drafter to go on from"
        problem = _find_other_signature(manifest, manifest.drafter.graph, hidden.shape[2])
        if problem:
            return problem
    return None


def _find_other_signature(manifest: Manifest, name: str, hidden_size: int) -> str | None:
    graph = manifest.graph(name)
    for variant in (graph, graph.deployment):
        tensors = (*variant.inputs, *variant.outputs)
        for wanted in _list_tensors(manifest, hidden_size):
            found = _find(tensors, wanted.name)
            if found != wanted:
                shown = "absent" if found is None else f"{found.dtype} {found.shape}"
                return (
                    f"{wanted.name} of {variant.path} should be {wanted.dtype} {wanted.shape} and "
                    f"is {shown}"
                )
    return None


def _list_tensors(manifest: Manifest, hidden_size: int) -> list[TensorInfo]:
    state: list[int | str] = ["batch", hidden_size]
    token = TensorInfo(name="input_ids", dtype="int64", shape=["batch"])
    if manifest.embeddings is not None:
        token = TensorInfo(name="inputs_embeds", dtype="float32", shape=state)
    return [
        TensorInfo(name="state", dtype="float32", shape=state),
        token,
        TensorInfo(name="updated_state", dtype="float32", shape=state),
        TensorInfo(name="logits", dtype="float32", shape=["batch", manifest.vocab_size]),
    ]


def _find(tensors: Sequence[TensorInfo], name: str) -> TensorInfo | None:
    return next((info for info in tensors if info.name == name), None)
