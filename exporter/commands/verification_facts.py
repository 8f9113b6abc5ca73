"""What a manifest says of the comparison with the checkpoint, in a few words."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from quatrain.runtime.manifest import Verification

__all__ = ["describe_verification"]


def describe_verification(found: "Verification | None") -> str:
    """What was compared when the bundle was written, or why nothing was."""
    if found is None:
        return "not recorded"
    if found.status == "skipped":
        return f"no: {found.reason}"
    error = "" if found.logits_error is None else f", logits within {found.logits_error:.1e}"
    return f"passed {found.checks} checks ({', '.join(found.runners)}){error}"
