"""Where a token leaves a model with exits: the policies that read a router."""

import math
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

__all__ = ["ArgmaxRouting", "ForcedRouting", "Routing", "SampleRouting"]


class Routing(Protocol):
    """Decides at each exit a token reaches, except at the final one."""

    def decide(self, exit_index: int, router_logprobs: NDArray[np.float32]) -> bool:
        """True to exit here. `router_logprobs` is float32 [2]: continue, exit."""
        ...


@dataclass(frozen=True, slots=True)
class ArgmaxRouting:
    """Exit where the router finds it strictly likelier than to continue.

    Deterministic, and a different model from the mixture that was trained.
    """

    def decide(self, exit_index: int, router_logprobs: NDArray[np.float32]) -> bool:
        """True to exit here."""
        return bool(router_logprobs[1] > router_logprobs[0])


@dataclass(frozen=True, slots=True)
class SampleRouting:
    """Exit with the router's probability: tokens then come from the mixture itself."""

    rng: np.random.Generator

    def decide(self, exit_index: int, router_logprobs: NDArray[np.float32]) -> bool:
        """True to exit here; draws once."""
        return self.rng.random() < math.exp(router_logprobs[1])


@dataclass(frozen=True, slots=True)
class ForcedRouting:
    """Always the same exit, for tests and benchmarks; the final one is full depth."""

    exit_index: int

    def decide(self, exit_index: int, router_logprobs: NDArray[np.float32]) -> bool:
        """True to exit here."""
        return exit_index >= self.exit_index
