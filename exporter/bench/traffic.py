"""How many bytes of weights and caches a CPU's calls read, from the files of a bundle alone."""

from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from quatrain.exporter.bench.setting import Case
from quatrain.runtime.manifest import ITEM_BYTES, Manifest

__all__ = ["Traffic", "can_read_graphs", "open_traffic"]


@dataclass(frozen=True, slots=True)
class Traffic:
    """Bytes that a call of each graph reads on a CPU, where weights and caches are float32.

    Activations do not count. `weight_bytes` is by graph; `cache_bytes` those of a token, by graph.
    `feed_forward_share` is what one row needs of its feed-forward weights over what a dense decoder
    needs, None where that is all.
    """

    weight_bytes: Mapping[str, int]
    cache_bytes: Mapping[str, int]
    feed_forward_share: float | None

    def count_bytes_per_token(self, calls: Mapping[str, int], case: Case) -> int:
        """Of the calls after the first token, so many by graph, for one token of one sequence.

        Caches are taken to be as long as they are half way through.
        """
        length = case.prompt_tokens + case.new_tokens // 2
        caches = {name: n * length * case.batch for name, n in self.cache_bytes.items()}
        total = sum(n * (self.weight_bytes[name] + caches[name]) for name, n in calls.items())
        return total // ((case.new_tokens - 1) * case.batch)


def can_read_graphs() -> bool:
    """Whether the package is there that takes; what only runs bundles has no other use for it."""
    return find_spec("onnx") is not None


def open_traffic(bundle: Path, manifest: Manifest, *, is_gathered: bool) -> Traffic:
    """Read the graphs, not the weights, where `can_read_graphs`.

    Args:
        is_gathered: One row a call, so that a bank-top-k feed-forward reads its active channels
            alone.
    """
    import onnx

    from quatrain.exporter.graph_weights import weigh_graph

    banks, item_bytes = manifest.spec["feed_forward"], ITEM_BYTES["float32"]
    weights, dense, active = {}, 0, 0
    for graph in manifest.graphs:
        proto = onnx.load(bundle / graph.path, load_external_data=False).graph
        parts = weigh_graph(proto, banks, item_bytes)
        saved = parts.feed_forward - parts.active
        weights[graph.name] = parts.read - (saved if is_gathered else 0)
        dense, active = dense + parts.dense, active + parts.active
    share = active / dense if banks and dense else None
    caches = {g.name: manifest.cache.bytes_per_token(g.name, item_bytes) for g in manifest.graphs}
    return Traffic(weights, caches, share)
