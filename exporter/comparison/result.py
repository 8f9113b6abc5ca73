"""What a comparison found: plain records, written as JSON and drawn as they are."""

from typing import Literal

import msgspec

__all__ = [
    "CaseInfo",
    "Check",
    "Comparison",
    "Divergence",
    "Flip",
    "Histogram",
    "LayerError",
    "PlotData",
    "RunnerInfo",
]


class Check(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One judgement about one runner.

    `value` is what was measured, `tolerance` what was allowed: at most that, or at least that
    where `at_least` is set. `detail` says where the value is from, or what it means.
    """

    name: str
    passed: bool
    value: float | int | str
    tolerance: float | int | str
    runner: str
    detail: str = ""
    at_least: bool = False


class CaseInfo(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One batch of token sequences: the prompts of `prefill` tokens, then `decode_steps` tokens
    fed one by one. `purpose` says what it is there to cross."""

    name: str
    lengths: list[int]
    prefill: list[int]
    decode_steps: int
    purpose: str


class RunnerInfo(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A side that is held to the reference: what ran, or why it did not.

    `dtype` is what it computes in, `seconds` what it took; both are empty where it was skipped.
    """

    name: str
    status: Literal["compared", "skipped"]
    reason: str = ""
    dtype: str = ""
    seconds: float = 0.0


class Divergence(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The first tensor, in the order in which they are computed, that is further from the
    reference than its tolerance (relative to the reference's largest magnitude), or not finite.

    `position` is the first token position of the sequence that shows it; `layer` None for what is
    outside all layers. `kind` says which of the two it is.
    """

    runner: str
    tensor: str
    layer: int | None
    position: int | None
    error: float
    tolerance: float
    case: str = ""
    kind: Literal["difference", "not finite"] = "difference"


class LayerError(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How far a tensor is from the reference's: the largest absolute difference, the reference's
    largest magnitude, and the one divided by the other. `layer` is None outside all layers."""

    runner: str
    tensor: str
    layer: int | None
    max_abs_error: float
    reference_max: float
    relative: float


class Flip(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A position whose most likely next token is another one than the reference's.

    `margin` is by how much the reference preferred its own to the runner's, in logits (in log
    probabilities for a model with exits): small where both were nearly as good.
    """

    runner: str
    case: str
    sequence: int
    position: int
    reference_token: int
    runner_token: int
    margin: float


class Histogram(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`counts[i]` values lie from `edges[i]` up to `edges[i + 1]`."""

    edges: list[float]
    counts: list[int]


class PlotData(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What the plots are of, each by the runner's name.

    Attributes:
        kl_per_position: KL divergence of the next-token distribution from the reference's, in
            nats, at each position of the longest sequence.
        logit_differences: Logits minus the reference's, all positions.
        exit_shares: The mean probability that a token leaves at each exit; the reference's own is
            under "reference". Empty without exits.
        selection_overlap: The share of the reference's active channels that are active here too,
            by layer. Empty where no channels are chosen.
        flips: Positions with another most likely token.
    """

    kl_per_position: dict[str, list[float]] = {}
    logit_differences: dict[str, Histogram] = {}
    exit_shares: dict[str, list[float]] = {}
    selection_overlap: dict[str, dict[int, float]] = {}
    flips: list[Flip] = []


class Comparison(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Everything about one bundle, held to its checkpoint.

    `reference` says what of the checkpoint the bundle was held to: of quantized ones its weights
    rounded alike. `layer_errors` is filled where layers were asked for, or something failed;
    `divergences` where a tensor is beyond its tolerance or not finite.
    """

    bundle: str
    checkpoint: str
    reference: str
    family: str
    cases: list[CaseInfo]
    runners: list[RunnerInfo]
    checks: list[Check]
    divergences: list[Divergence] = []
    layer_errors: list[LayerError] = []
    plots: PlotData = msgspec.field(default_factory=PlotData)
    seconds: float = 0.0

    @property
    def passed(self) -> bool:
        """Whether something was compared and nothing was beyond its tolerance."""
        compared = any(runner.status == "compared" for runner in self.runners)
        return compared and all(check.passed for check in self.checks)

    @property
    def failures(self) -> list[Check]:
        """The checks that were not passed."""
        return [check for check in self.checks if not check.passed]
