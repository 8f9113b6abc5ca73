"""What a manifest says of the comparison with the checkpoint, in a few words."""

from typing import TYPE_CHECKING

from quatrain.exporter.compared_reference import describe_reference

if TYPE_CHECKING:
    from quatrain.runtime.manifest import Verification

__all__ = ["describe_verification"]


def describe_verification(found: "Verification | None", quantized: str | None) -> str:
    """What was compared when the bundle was written, or why nothing was; with the reference where
    the bundle's weights are codes of the kind `quantized`."""
    if found is None:
        return "not recorded"
    if found.status == "skipped":
        return f"no: {found.reason}"
    error = "" if found.logits_error is None else f", logits within {found.logits_error:.1e}"
    passed = f"passed {found.checks} checks ({', '.join(found.runners)}){error}"
    return passed if quantized is None else f"{passed}; reference: {describe_reference(quantized)}"
