"""The sequence axis: every token is several rows."""

from dataclasses import dataclass

from quatrain.exporter.errors import SpecError

__all__ = ["KVMirror", "Streams", "check_streams"]


@dataclass(frozen=True, slots=True)
class KVMirror:
    """Layer `target` makes its keys and values of layer `source`'s normed input (0-based).

    The projections, norms and rotary rule are the target's own (WeLM's `kv_mirror_layers` and
    `kv_mirror_imitated_layers`).
    """

    target: int
    source: int


@dataclass(frozen=True, slots=True)
class Streams:
    """The sequence axis (Hidden Decoding, arXiv 2607.08186): token i becomes the rows
    i*n .. i*n + n-1, row i*n + s looked up in table s, and only the last one predicts.

    `num_streams` is n. `intra_stream` has an entry for each layer, or none at all: True where rows
    attend within their own stream, at token positions (stream-factorized attention); elsewhere a
    row attends to all rows before it, at row positions.
    """

    num_streams: int
    intra_stream: tuple[bool, ...] = ()
    mirrors: tuple[KVMirror, ...] = ()


def check_streams(streams: Streams, num_hidden_layers: int) -> None:
    """Raise `SpecError` for streams that no decoder of so many layers can have."""
    if streams.num_streams < 1:
        raise SpecError(
            f"{streams.num_streams} streams",
            "a token is one row at least",
            "correct scale_seq_times in config.json: the number of streams less one",
        )
    if streams.intra_stream and len(streams.intra_stream) != num_hidden_layers:
        raise SpecError(
            f"stream-factorized attention for {len(streams.intra_stream)} layers",
            f"the decoder has {num_hidden_layers}",
            "give one entry per layer in scale_seq_attn_per_suffix_layerwise of config.json",
        )
    targets = [mirror.target for mirror in streams.mirrors]
    for mirror in streams.mirrors:
        if not 0 <= mirror.source < mirror.target < num_hidden_layers:
            raise SpecError(
                f"KV-Mirror of layer {mirror.target} from layer {mirror.source}",
                f"a layer mirrors an earlier one, and both are among the {num_hidden_layers}",
                "correct kv_mirror_layers and kv_mirror_imitated_layers in config.json",
            )
        if targets.count(mirror.target) > 1:
            raise SpecError(
                f"KV-Mirror of layer {mirror.target} from several layers",
                "a layer has one source of keys and values",
                "correct kv_mirror_layers in config.json",
            )
