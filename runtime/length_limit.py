"""What to do about a sequence that a bundle has no room for."""

from quatrain.runtime.manifest import Manifest

__all__ = ["advise_on_length"]


def advise_on_length(fix: str, needed: int, manifest: Manifest) -> str:
    """`fix`, and another export besides, unless the model itself has no room for `needed` tokens:
    then the export would be refused."""
    positions = manifest.spec.get("backbone", {}).get("max_position_embeddings")
    if positions is not None and needed > positions:
        return f"{fix}: the model has {positions} positions, so no export holds {needed} tokens"
    return f"{fix}, or export the checkpoint with a larger --max-seq-len"
