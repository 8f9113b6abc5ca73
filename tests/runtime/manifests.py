"""Manifests of small bundles that are valid."""

import msgspec

from quatrain.runtime.manifest import (
    CacheLayer,
    CacheLayout,
    DraftLayout,
    ExitLayout,
    FileRecord,
    Graph,
    GraphVariant,
    HostEmbeddings,
    Limits,
    Manifest,
    StoredTable,
    TensorInfo,
    Versions,
)

INPUTS = [TensorInfo(name="input_ids", dtype="int64", shape=["batch", "rows"])]


def make_graph(name: str) -> Graph:
    return Graph(
        name=name,
        role="segment",
        path=f"{name}.float32.onnx",
        dtype="float32",
        inputs=INPUTS,
        outputs=[],
        deployment=GraphVariant(
            path=f"{name}.float16.onnx", dtype="float16", inputs=INPUTS, outputs=[]
        ),
    )


def make_manifest() -> Manifest:
    graphs = [make_graph("segment_0"), make_graph("head")]
    paths = [path for graph in graphs for path in (graph.path, graph.deployment.path)]
    return Manifest(
        schema_version=1,
        family="nvium",
        spec={},
        vocab_size=100,
        stored_dtype="float16",
        deployment_dtype="float16",
        limits=Limits(max_seq_len=64, max_batch=2, prefill_chunk=16, max_deferred=4),
        cache=CacheLayout(
            capacity=72,
            layers=[CacheLayer(layer=0, graph="segment_0", num_heads=2, head_dim=8)],
        ),
        graphs=graphs,
        eos_token_ids=[2],
        files=[FileRecord(path=path, bytes=1, sha256="0" * 64) for path in paths],
        versions=Versions(quatrain="0", onnx="0", onnxruntime="0"),
        exits=ExitLayout(layers=[1], segments=["segment_0"], heads=["head"]),
    )


def make_streams_manifest() -> Manifest:
    """Tokens of three rows, whose embedding tables, 100 x 8, stay on the host."""
    manifest = make_manifest()
    size = 100 * 8 * 2
    places = [("a.safetensors", 64), ("a.safetensors", 64 + size), ("b.safetensors", 80)]
    tables = [
        StoredTable(path=path, offset=offset, dtype="bfloat16", shape=[100, 8])
        for path, offset in places
    ]
    first = embedding_inputs(manifest.graphs[0], 24)
    files = [
        FileRecord(path="a.safetensors", bytes=64 + 2 * size, sha256="0" * 64),
        FileRecord(path="b.safetensors", bytes=80 + size, sha256="0" * 64),
    ]
    layer = msgspec.structs.replace(manifest.cache.layers[0], unit="rows", window=1)
    return msgspec.structs.replace(
        manifest,
        cache=CacheLayout(capacity=72, layers=[layer], rows_per_token=3),
        graphs=[first, manifest.graphs[1]],
        files=[*manifest.files, *files],
        embeddings=HostEmbeddings(tables=tables),
    )


def make_cached_manifest() -> Manifest:
    """The same with the caches of its only layer: growing on a CPU, static in engines."""
    manifest = make_streams_manifest()
    first, *others = manifest.graphs
    lengths: tuple[int | str, ...] = ("row_length", 3 * 72)
    growing, static = (
        [
            TensorInfo(name=f"{kind}_cache.0", dtype="float32", shape=["batch", 2, length, 8])
            for kind in ("key", "value")
        ]
        for length in lengths
    )
    deployment = msgspec.structs.replace(
        first.deployment, inputs=[*first.deployment.inputs, *static]
    )
    graph = msgspec.structs.replace(first, inputs=[*first.inputs, *growing], deployment=deployment)
    return msgspec.structs.replace(manifest, graphs=[graph, *others])


def make_drafter_manifest() -> Manifest:
    """A decoder that gives its states, and a drafter."""
    manifest = make_manifest()
    decoder, drafter = manifest.graphs
    state: list[int | str] = ["batch", 8]
    return msgspec.structs.replace(
        manifest,
        graphs=[
            change_graph(decoder, "decoder", INPUTS, [describe("hidden", ["batch", "outputs", 8])]),
            change_graph(
                drafter,
                "drafter",
                [
                    describe("state", state),
                    TensorInfo(name="input_ids", dtype="int64", shape=["batch"]),
                ],
                [describe("updated_state", state), describe("logits", ["batch", 100])],
            ),
        ],
        exits=None,
        drafter=DraftLayout(graph="head"),
        document_token_id=2,
    )


def describe(name: str, shape: list[int | str]) -> TensorInfo:
    return TensorInfo(name=name, dtype="float32", shape=shape)


def change_graph(
    graph: Graph, role: str, inputs: list[TensorInfo], outputs: list[TensorInfo]
) -> Graph:
    deployment = msgspec.structs.replace(graph.deployment, inputs=inputs, outputs=outputs)
    return msgspec.structs.replace(
        graph, role=role, inputs=inputs, outputs=outputs, deployment=deployment
    )


def embedding_inputs(graph: Graph, width: int) -> Graph:
    shape: list[int | str] = ["batch", "rows", width]
    inputs = [TensorInfo(name="inputs_embeds", dtype="float32", shape=shape)]
    deployment = msgspec.structs.replace(graph.deployment, inputs=inputs)
    return msgspec.structs.replace(graph, inputs=inputs, deployment=deployment)
