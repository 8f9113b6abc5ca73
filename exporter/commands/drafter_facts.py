"""The time axis as text, for the commands that show it."""

from collections.abc import Mapping

__all__ = ["describe_drafter"]


def describe_drafter(drafter: object, max_draft: int | None = None) -> dict[str, str]:
    """A fact for the drafter, as `describe_spec` has it; none for a decoder without one.

    Args:
        max_draft: The most tokens it drafts at once; None for a checkpoint, which has no limit.
    """
    if not isinstance(drafter, Mapping):
        return {}
    kind, width = drafter.get("kind"), drafter.get("inner_size")
    residual = "added to the state" if drafter.get("residual") else "in place of the state"
    use = "exported with --drafter" if max_draft is None else f"at most {max_draft} tokens at once"
    return {"drafter": f"{kind} dynamics of width {width}, {residual}; {use}"}
