"""What a bundle is held to, in a sentence: if quantized, not the checkpoint as it is."""

__all__ = ["describe_reference"]


def describe_reference(quantized: str | None) -> str:
    """The reference of a comparison; `quantized` is the kind of a bundle's codes, None without."""
    if quantized is None:
        return "the checkpoint's weights as they are"
    return (
        f"the checkpoint's weights rounded to {quantized} as in the bundle; on a CPU with exact"
        " products (those of --exact); what rounding costs: `quatrain perplexity` of this bundle"
        " and of one exported without --quantize"
    )
