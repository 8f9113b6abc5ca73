"""A decoder: one backbone and the axes that set it apart from a plain one."""

from dataclasses import KW_ONLY, dataclass
from itertools import pairwise

from quatrain.exporter.errors import SpecError
from quatrain.exporter.spec.backbone import Backbone
from quatrain.exporter.spec.drafter import Drafter, check_drafter
from quatrain.exporter.spec.exits import Exits, check_exit_layers
from quatrain.exporter.spec.feed_forward import BankTopK, check_bank_top_k
from quatrain.exporter.spec.streams import Streams, check_streams

__all__ = ["DecoderSpec"]


@dataclass(frozen=True, slots=True)
class DecoderSpec:
    """One decoder: a backbone and its axes. Combinations that make no sense are refused here."""

    backbone: Backbone
    _: KW_ONLY
    streams: Streams | None = None
    feed_forward: BankTopK | None = None
    exits: Exits | None = None
    drafter: Drafter | None = None

    def __post_init__(self) -> None:
        layers = self.backbone.num_hidden_layers
        if self.exits is not None:
            check_exit_layers(self.exits.layers, layers)
        if self.streams is not None:
            check_streams(self.streams, layers)
        if self.feed_forward is not None:
            check_bank_top_k(self.feed_forward, self.backbone.intermediate_size, layers)
            self._refuse_biased_banks()
        if self.drafter is not None:
            check_drafter(self.drafter)
        self._refuse_pairs()

    def _refuse_pairs(self) -> None:
        pairs = {
            "Hidden Decoding's streams together with N-vium's exits": (
                (self.streams, self.exits),
                "an exit would have to fill the rows of every stream",
            ),
            "latent drafting (HiLP, NextLat) together with N-vium's exits": (
                (self.drafter, self.exits),
                "a draft is verified at full depth, which is what exits avoid",
            ),
            "latent drafting (HiLP, NextLat) together with Hidden Decoding's streams": (
                (self.drafter, self.streams),
                "the dynamics know one state for a token, and it would have several",
            ),
        }
        for asked, (axes, reason) in pairs.items():
            if all(axis is not None for axis in axes):
                raise SpecError(
                    asked,
                    f"no such model is known: {reason}",
                    "use a checkpoint with one of the two",
                )

    def _refuse_biased_banks(self) -> None:
        if self.backbone.mlp_bias:
            raise SpecError(
                "a bank-top-k feed-forward with biases",
                "no such model is known; whether a channel that does not run keeps its bias is"
                " not defined",
                "use a checkpoint without these biases (mlp_bias), or without bank_topk",
            )

    @property
    def family(self) -> str:
        """The name a user knows this decoder by: its axes, `dense` where it has none."""
        axes = {
            "hidden_decoding": self.streams,
            "bank_topk": self.feed_forward,
            "nvium": self.exits,
            self._drafter_family: self.drafter,
        }
        return "+".join(name for name, axis in axes.items() if axis is not None) or "dense"

    @property
    def _drafter_family(self) -> str:
        is_nextlat = self.drafter is not None and self.drafter.kind == "nextlat"
        return "nextlat" if is_nextlat else "hilp"

    @property
    def num_streams(self) -> int:
        """Rows of a token: 1 for a decoder without the sequence axis."""
        return 1 if self.streams is None else self.streams.num_streams

    def is_intra_stream(self, layer: int) -> bool:
        """Whether the rows of a layer attend within their own stream only."""
        return self.streams is not None and any(self.streams.intra_stream[layer : layer + 1])

    def mirror_source(self, layer: int) -> int | None:
        """The layer whose normed input makes the keys and values of `layer`, if not its own."""
        mirrors = () if self.streams is None else self.streams.mirrors
        return next((mirror.source for mirror in mirrors if mirror.target == layer), None)

    @property
    def segments(self) -> tuple[range, ...]:
        """The decoder layers of each graph: cut at the exits, whole where there are none."""
        cuts = () if self.exits is None else self.exits.layers
        bounds = (0, *cuts, self.backbone.num_hidden_layers)
        return tuple(range(a, b) for a, b in pairwise(bounds))
