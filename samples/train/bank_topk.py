"""Bank-top-k: a small predictor picks, per token, which feed-forward channels run.

Method: arXiv 2606.10722. Neither code nor weights are public, so tensor names and settings are
this project's own. Letters in shapes: B batch, T tokens, C hidden, I channels of the feed-forward.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from enum import Enum
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from samples.train.llama import DenseLlama, FeedForward, LlamaSettings

GATE_SUFFIX = ".mlp.gate_proj.weight"
PREDICTOR = "model.layers.{}.mlp.predictor.{}.weight"


@dataclass(frozen=True, slots=True)
class BankSettings:
    """Which channels run: the `top_k` best of every bank of `bank_size` neighbours."""

    bank_size: int = 64
    top_k: int = 16
    predictor_rank: int = 24

    def __post_init__(self) -> None:
        if not 1 <= self.top_k <= self.bank_size:
            raise ValueError(f"{self.top_k} channels of a bank of {self.bank_size}")

    def as_dict(self) -> dict[str, object]:
        """The key of config.json."""
        fields: dict[str, object] = {
            **asdict(self),
            "dense_fallback_layers": [],
            "gate_mode": "sigmoid",
            "predictor_activation": None,
        }
        return {"bank_topk": dict(sorted(fields.items()))}


@dataclass(frozen=True, slots=True)
class StageSettings:
    """When each of the paper's three stages ends, in shares of the steps; the last ends at 1.

    First the predictor learns the native gate beside a frozen model; then its sigmoid is the gate
    of a model that still runs every channel; then only the best channels run.
    """

    warmup_end: float = 0.1
    gated_end: float = 0.25
    surrogate_width: float = 0.3
    """Of the sigmoid whose slope stands in for the mask's; in units of the logits."""


class Stage(Enum):
    """What a feed-forward network computes with its predictor."""

    NATIVE = "h = sigma(u) * u * v; the predictor only learns"
    GATED = "h = sigma(p) * u * v"
    SPARSE = "h = m * sigma(p) * u * v"


def split_banks(channels: Tensor, bank_size: int) -> Tensor:
    """[.., I] as [.., I / bank, bank]."""
    return channels.view(*channels.shape[:-1], -1, bank_size)


def rank_banks(scores: Tensor, bank_size: int) -> tuple[Tensor, Tensor]:
    """Scores [.., I] sorted downwards within banks, and from where: both [.., I / bank, bank].

    Equal scores keep the order of their channels; NaN counts as -inf.
    """
    finite = scores.float().masked_fill(scores.isnan(), -torch.inf)
    ranked = split_banks(finite, bank_size).sort(dim=-1, descending=True, stable=True)
    return ranked.values, ranked.indices


def mask_ranked(order: Tensor, top_k: int) -> Tensor:
    """1 for the first `top_k` channels of each bank's order, 0 for the others: [.., I]."""
    mask = torch.zeros_like(order, dtype=torch.float32)
    return mask.scatter(-1, order[..., :top_k], 1.0).flatten(-2)


def mask_straight_through(logits: Tensor, bank_size: int, top_k: int, width: float) -> Tensor:
    """Mask [.., I] of the best channels; its gradient is a sigmoid's around the bank's threshold.

    The threshold lies halfway between the last channel kept and the first left out, and is a
    constant to the gradient.
    """
    values, order = rank_banks(logits.detach(), bank_size)
    mask = mask_ranked(order, top_k)
    if top_k == bank_size:
        return mask
    threshold = values[..., top_k - 1 : top_k + 1].mean(dim=-1, keepdim=True)
    soft = ((split_banks(logits, bank_size) - threshold) / width).sigmoid().flatten(-2)
    return mask + (soft - soft.detach())


def add_predictors(weights: Mapping[str, Tensor], rank: int) -> dict[str, Tensor]:
    """Dense weights and a predictor a layer: at first the best approximation of W_gate."""
    gates = {int(n.split(".")[2]): w for n, w in weights.items() if n.endswith(GATE_SUFFIX)}
    added = {}
    for layer, gate in gates.items():
        left, scale, right = torch.linalg.svd(gate, full_matrices=False)
        root = scale[:rank].sqrt()
        added[PREDICTOR.format(layer, 0)] = root[:, None] * right[:rank]
        added[PREDICTOR.format(layer, 1)] = left[:, :rank] * root
    return dict(weights) | added


class BankFeedForward(FeedForward):
    """down(m * sigma(p) * u * v) with p = predictor(x), u = gate_proj(x), v = up_proj(x)."""

    def __init__(
        self, settings: LlamaSettings, banks: BankSettings, surrogate_width: float
    ) -> None:
        super().__init__(settings)
        rank = banks.predictor_rank
        self.banks, self.surrogate_width, self.stage = banks, surrogate_width, Stage.SPARSE
        self.predictor = nn.Sequential(
            nn.Linear(settings.hidden_size, rank, bias=False),
            nn.Linear(rank, settings.intermediate_size, bias=False),
        )

    def forward(self, x: Tensor) -> Tensor:
        """Same shape as x."""
        if self.stage is Stage.NATIVE:
            return super().forward(x)
        logits = self.predictor(x).float()
        hidden = logits.sigmoid() * self.gate_proj(x) * self.up_proj(x)
        if self.stage is Stage.SPARSE:
            sizes = self.banks.bank_size, self.banks.top_k
            hidden = hidden * mask_straight_through(logits, *sizes, self.surrogate_width)
        output: Tensor = self.down_proj(hidden)
        return output

    def imitation_loss(self, x: Tensor) -> Tensor:
        """How far sigma(p) is from the native gate sigma(u): their mean cross entropy."""
        with torch.no_grad():
            gate = self.gate_proj(x).sigmoid()
        return functional.binary_cross_entropy_with_logits(self.predictor(x), gate)


class PostHocFeedForward(FeedForward):
    """Dense weights cut down after the fact: the channels with the largest |SiLU(u) * v| stay."""

    def __init__(self, settings: LlamaSettings, banks: BankSettings) -> None:
        super().__init__(settings)
        self.banks = banks

    def forward(self, x: Tensor) -> Tensor:
        """Same shape as x."""
        hidden = functional.silu(self.gate_proj(x)) * self.up_proj(x)
        _, order = rank_banks(hidden.abs(), self.banks.bank_size)
        output: Tensor = self.down_proj(mask_ranked(order, self.banks.top_k) * hidden)
        return output


def sparsify_post_hoc(model: DenseLlama, banks: BankSettings) -> DenseLlama:
    """The same weights with `PostHocFeedForward` in every layer."""
    settings = model.model.settings
    sparse = DenseLlama(settings)
    for layer in sparse.model.layers:
        layer.mlp = PostHocFeedForward(settings, banks)
    sparse.load_state_dict(model.state_dict())
    return sparse


class BankTopKLlama(DenseLlama):
    """The baseline with a predictor in each feed-forward network, trained in three stages."""

    def __init__(
        self, settings: LlamaSettings, banks: BankSettings, stages: StageSettings | None = None
    ) -> None:
        super().__init__(settings)
        self.stages = stages or StageSettings()
        for layer in self.model.layers:
            layer.mlp = BankFeedForward(settings, banks, self.stages.surrogate_width)

    def feed_forwards(self) -> list[BankFeedForward]:
        """One a layer."""
        return [cast(BankFeedForward, layer.mlp) for layer in self.model.layers]

    def set_stage(self, stage: Stage) -> None:
        """For every layer."""
        for feed_forward in self.feed_forwards():
            feed_forward.stage = stage

    def record_inputs(self, tokens: Tensor) -> list[Tensor]:
        """What each feed-forward network sees [B, T, C], without a gradient."""
        inputs: list[Tensor] = []
        hooks = [
            feed_forward.register_forward_pre_hook(lambda _, args: inputs.append(args[0]))
            for feed_forward in self.feed_forwards()
        ]
        with torch.no_grad():
            self.model.run_layers(tokens)
        for hook in hooks:
            hook.remove()
        return inputs

    def compute_loss(self, tokens: Tensor, targets: Tensor, progress: float) -> Tensor:
        """The stage's loss; in the first, only predictors get a gradient. Scoring is sparse."""
        if progress < self.stages.warmup_end:
            self.set_stage(Stage.NATIVE)
            pairs = zip(self.feed_forwards(), self.record_inputs(tokens), strict=True)
            loss = torch.stack([layer.imitation_loss(x) for layer, x in pairs]).mean()
        else:
            sparse = progress >= self.stages.gated_end
            self.set_stage(Stage.SPARSE if sparse else Stage.GATED)
            loss = super().compute_loss(tokens, targets, progress)
        self.set_stage(Stage.SPARSE)
        return loss
