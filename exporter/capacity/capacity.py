"""Plans where a model can run, before anything is exported or built."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from quatrain.exporter.capacity.fit import TargetFit, fit_target, share_steps
from quatrain.exporter.capacity.model import PlannedModel, load_planned
from quatrain.exporter.capacity.needs import Needs, count_needs
from quatrain.exporter.errors import ExportError
from quatrain.exporter.targets import TARGETS, find_target

__all__ = ["CapacityPlan", "plan_capacity"]


@dataclass(frozen=True, slots=True)
class CapacityPlan:
    """What a model needs, and each target with each size of memory it is sold with.

    The last three say what the floors assume: shares of the tokens by exit (None: all go all the
    way), guesses of a round, and tokens that one gives.
    """

    needs: Needs
    fits: list[TargetFit]
    exit_shares: list[float] | None
    draft: int
    accepted_per_step: float

    def is_possible(self, target: str) -> bool:
        """Whether some memory size of that target has room."""
        return any(fit.fits for fit in self.fits if fit.target == target)


def plan_capacity(
    model: PlannedModel | Path,
    targets: Sequence[str] = (),
    *,
    exit_shares: Sequence[float] | None = None,
    draft: int = 0,
    accepted_per_step: float = 1.0,
) -> CapacityPlan:
    """Hold what a model needs against what GPUs have.

    Args:
        model: A bundle's folder, or what `open_planned` makes of a checkpoint.
        targets: Names of `TARGETS`. Default: all.
        exit_shares: Of the tokens, by exit, the last index being full depth (`quatrain bench`
            measures them). Default: all tokens go all the way.
        draft: Tokens guessed in a round, of which with the verified one `accepted_per_step` stay.

    Raises:
        QuatrainError: An argument that does not go with the model.
    """
    planned = load_planned(model) if isinstance(model, Path) else model
    needs = count_needs(planned)
    _check_shares(planned, exit_shares)
    _check_draft(planned, draft, accepted_per_step)
    shares = share_steps(needs, exit_shares, draft, accepted_per_step)
    chosen = [find_target(name) for name in dict.fromkeys(targets)] or TARGETS
    return CapacityPlan(
        needs=needs,
        fits=[fit_target(needs, t, memory, shares) for t in chosen for memory in t.memory],
        exit_shares=None if exit_shares is None else list(exit_shares),
        draft=draft,
        accepted_per_step=accepted_per_step,
    )


def _check_shares(model: PlannedModel, shares: Sequence[float] | None) -> None:
    if shares is None:
        return
    exits = model.manifest.exits
    if exits is None:
        raise ExportError(
            "shares of the tokens by exit (--exit-shares)",
            f"this model ({model.manifest.family}) has no exits",
            "leave them out",
        )
    count = len(exits.layers)
    is_good = (
        len(shares) == count and min(shares) >= 0 and math.isclose(sum(shares), 1, abs_tol=0.01)
    )
    if not is_good:
        raise ExportError(
            f"--exit-shares {' '.join(f'{share:g}' for share in shares)}",
            f"the model has {count} exits, full depth included, and shares add up to 1",
            f"give {count} numbers that do, as `quatrain bench` prints them",
        )


def _check_draft(model: PlannedModel, draft: int, accepted: float) -> None:
    if draft == 0 and accepted == 1:
        return
    if model.manifest.drafter is None:
        found = f"this model ({model.manifest.family}) has no drafter"
        fix = "leave both out, or plan a HiLP or NextLat checkpoint with --drafter"
        if model.is_drafter_left_out:
            found = "the checkpoint has a drafter, and it is left out of this plan"
            fix = "add --drafter, or leave both out"
        raise ExportError(
            f"rounds of {draft} drafts (--draft) that give {accepted:g} tokens"
            " (--accepted-per-step)",
            found,
            fix,
        )
    most = model.manifest.limits.max_draft
    if not 1 <= draft <= most:
        raise ExportError(
            f"--draft {draft}",
            f"this model drafts 1 to {most} tokens (--max-draft)",
            f"give 1 to {most}",
        )
    if not 1 <= accepted <= draft + 1:
        raise ExportError(
            f"--draft {draft} --accepted-per-step {accepted:g}",
            "a round keeps at least one token, and at most one more than were guessed",
            f"give --accepted-per-step 1 to {draft + 1}, as `quatrain bench` prints it",
        )
