"""Networks to run the kernels on, and how near the reference they have to come."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from tests.plugins.interpreter import run_plan

from quatrain.plugins.bank_topk_ffn.plugin import BankTopKFeedForwardPlugin
from quatrain.plugins.bank_topk_ffn.reference import (
    bank_topk_feed_forward,
    predict_logits,
    select_channels,
)

# Of the largest result that sums of these magnitudes can have without cancelling. 16-bit: what
# rounding the output takes (2^-11 and 2^-8 of it), twice; tiles round once more in the middle.
TOLERANCES = {torch.float32: 2e-6, torch.float16: 1e-3, torch.bfloat16: 8e-3}
NAMES = ("x", "predictor_0", "predictor_1", "gate", "up", "down")


@dataclass
class Case:
    """Inputs in their type, and what the operator is asked to do."""

    inputs: dict[str, torch.Tensor]
    attributes: dict[str, Any]

    @property
    def plugin(self) -> BankTopKFeedForwardPlugin:
        return BankTopKFeedForwardPlugin(**self.attributes)

    @property
    def arrays(self) -> dict[str, np.ndarray]:
        return {name: tensor.float().numpy() for name, tensor in self.inputs.items()}

    def run(self) -> torch.Tensor:
        (y,) = run_plan(self.plugin, list(self.inputs.values()))
        return y

    def expect(self) -> np.ndarray:
        return bank_topk_feed_forward(*self.arrays.values(), **self.attributes)

    def choose(self) -> np.ndarray:
        """True for the active channels, [B, R, d_i]."""
        x, first, second = (self.arrays[name] for name in NAMES[:3])
        logits = predict_logits(x, first, second, self.attributes["predictor_activation"])
        return select_channels(logits, self.attributes["bank_size"], self.attributes["top_k"])

    def check(self) -> torch.Tensor:
        """Run it, and compare with the reference."""
        found = self.run()
        assert found.dtype == self.inputs["x"].dtype
        x, _, _, gate, up, down = (np.abs(array) for array in self.arrays.values())
        bound = (((x @ gate.T) * (x @ up.T)) @ down).max()
        atol = TOLERANCES[found.dtype] * bound
        np.testing.assert_allclose(found.float().numpy(), self.expect(), rtol=0, atol=atol)
        return found


def make_case(
    rows: tuple[int, int] = (1, 1),
    hidden: int = 48,
    num_banks: int = 3,
    rank: int = 9,
    dtype: torch.dtype = torch.float32,
    bank_size: int = 64,
    top_k: int = 16,
    gate_mode: str = "sigmoid",
    activation: str = "none",
    seed: int = 0,
) -> Case:
    """Random inputs, which for the predictor are small integers over a power of two.

    So its logits are exact in whatever order they are summed up, and many are exactly equal. Behind
    a SiLU they could not be: there all is random, and no two are so near that rounding swaps them.
    """
    rng = np.random.default_rng(seed)
    channels = num_banks * bank_size
    shapes = ((*rows, hidden), (rank, hidden), (channels, rank), *[(channels, hidden)] * 3)
    inputs = {}
    for name, shape in zip(NAMES, shapes, strict=True):
        if name in NAMES[:3] and activation != "silu":
            array = rng.integers(-8, 9, shape) / 16
        else:
            array = rng.normal(size=shape) / np.sqrt(hidden)
        inputs[name] = torch.from_numpy(np.asarray(array, np.float32)).to(dtype)
    attributes = {
        "bank_size": bank_size,
        "top_k": top_k,
        "gate_mode": gate_mode,
        "predictor_activation": activation,
    }
    return Case(inputs, attributes)
