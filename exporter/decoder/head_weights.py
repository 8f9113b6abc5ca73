"""Which weights make the logits of each exit, and so which exits share a head graph."""

from quatrain.exporter.checkpoint.names import EMBEDDINGS, LM_HEAD, early_head_name
from quatrain.exporter.spec import DecoderSpec

__all__ = ["head_names", "head_weights"]


def head_weights(spec: DecoderSpec) -> list[str]:
    """The tensor that makes the logits of each exit, the final one last."""
    final = EMBEDDINGS if spec.backbone.tie_word_embeddings else LM_HEAD
    if spec.exits is None:
        return [final]
    num_early = len(spec.exits.layers)
    if spec.exits.early_head == "own":
        return [*(early_head_name(k) for k in range(num_early)), final]
    early = final if spec.exits.early_head == "lm_head" else EMBEDDINGS
    return [early] * num_early + [final]


def head_names(spec: DecoderSpec) -> list[str]:
    """The head graph of each exit; exits with the same weights share one."""
    weights = head_weights(spec)
    return ["head" if weight == weights[-1] else f"head_{k}" for k, weight in enumerate(weights)]
