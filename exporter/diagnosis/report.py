"""What a diagnosis found, in plain data; `dataclasses.asdict` makes it JSON-able."""

from dataclasses import dataclass

__all__ = [
    "ActivationReport",
    "ChannelUse",
    "LayerReport",
    "PositionBucket",
    "Repair",
    "Suggestion",
]


@dataclass(frozen=True, slots=True)
class PositionBucket:
    """The positions `first` to `last` of every window, and how well the next token is predicted
    there (`tokens` of them) by the bundle as it is."""

    first: int
    last: int
    tokens: int
    perplexity: float


@dataclass(frozen=True, slots=True)
class ChannelUse:
    """Which channels of a layer are chosen, over all rows.

    Args:
        rows: Rows that were looked at; a token has as many as the layer runs streams of it.
        recall: Share of the true top-k, those with the largest |SiLU(u) * v| of each bank, that the
            predictor chooses; None for a layer that has none, and so always finds them all.
        bucket_recall: The same for each bucket of positions.
        usage_entropy: Of how often each channel is chosen, as a share of its maximum: 1 where all
            are chosen equally often.
        never_used: Channels that no row chose.
        always_used: Channels that every row chose.
        channels: How many there are.
    """

    rows: int
    recall: float | None
    bucket_recall: list[float] | None
    usage_entropy: float
    never_used: int
    always_used: int
    channels: int


@dataclass(frozen=True, slots=True)
class Repair:
    """The bundle with one more layer dense, its gate kept.

    `perplexity` is that of the whole text, `bucket_perplexity` that of each bucket. `gain` is what
    it saves in the last bucket, in nats per token, and `gain_error` the standard error of that,
    from the differences token by token (None for a single token).
    """

    perplexity: float
    bucket_perplexity: list[float]
    gain: float
    gain_error: float | None


@dataclass(frozen=True, slots=True)
class LayerReport:
    """A layer. One that is dense already, as a fallback, has neither `use` nor `repair`."""

    layer: int
    is_dense: bool
    use: ChannelUse | None
    repair: Repair | None


@dataclass(frozen=True, slots=True)
class Suggestion:
    """The layer that repairs the last bucket best, beyond the noise of the text.

    `dense_fallback` is what to give to `quatrain export --dense-fallback`, which takes the place of
    the checkpoint's own choice: the layer, and those that are dense already.
    """

    layer: int
    dense_fallback: str
    perplexity_before: float
    perplexity_after: float


@dataclass(frozen=True, slots=True)
class ActivationReport:
    """A bank-top-k bundle on one text.

    `tokens` were predicted in `windows` windows of at most `window` tokens, which see nothing of
    each other. `chance` is the recall of a random choice, top_k / bank_size. `best_layer` is the
    one with the largest gain, if any has one; `suggestion` names it if that is beyond chance.
    """

    bundle: str
    family: str
    bank_size: int
    top_k: int
    predictor_rank: int | None
    gate_mode: str
    chance: float
    tokens: int
    windows: int
    window: int
    perplexity: float
    buckets: list[PositionBucket]
    layers: list[LayerReport]
    best_layer: int | None
    suggestion: Suggestion | None
