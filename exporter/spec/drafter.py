"""The time axis: latent dynamics that guess the next states, and with them tokens."""

from dataclasses import dataclass
from typing import Literal

from quatrain.exporter.errors import SpecError

__all__ = ["Drafter", "DrafterKind", "check_drafter"]

DrafterKind = Literal["glu_cross", "concat", "nextlat"]


@dataclass(frozen=True, slots=True)
class Drafter:
    """The low-level dynamics of HiLP (arXiv 2608.05806) or NextLat (arXiv 2511.05963): from the
    state h after the final norm and the embedding e of the next token to a guess of the next state,
    which the head reads as it is.

    - `glu_cross` (HiLP): g = (W_h h) * sigma(W_e e), then SwiGLU of width `inner_size`;
    - `concat` (HiLP, older): SwiGLU of width `inner_size` over [h; e];
    - `nextlat`: RMSNorm over [e; h], then linear, GELU, linear, GELU, linear of that width.

    With `residual` the result is added to h. `norm_eps` is that of NextLat's norm.
    """

    kind: DrafterKind
    inner_size: int
    residual: bool = True
    norm_eps: float = 1e-5


def check_drafter(drafter: Drafter) -> None:
    """Raise `SpecError` for dynamics that cannot be."""
    if drafter.inner_size < 1:
        raise SpecError(
            f"a drafter of width {drafter.inner_size}",
            "it must be at least 1",
            "check the tensors of the low-level dynamics",
        )
