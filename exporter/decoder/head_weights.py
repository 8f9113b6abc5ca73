"""Which weights make the logits of each exit, and so which exits share a head graph."""

from quatrain.exporter.spec import DecoderSpec

__all__ = ["head_names", "head_weights"]

_EMBEDDING = "model.embed_tokens.weight"


def head_weights(spec: DecoderSpec) -> list[str]:
    """The tensor that makes the logits of each exit, the final one last."""
    final = _EMBEDDING if spec.backbone.tie_word_embeddings else "lm_head.weight"
    if spec.exits is None:
        return [final]
    num_early = len(spec.exits.layers)
    if spec.exits.early_head == "own":
        return [*(f"early_lm_heads.{k}.weight" for k in range(num_early)), final]
    early = final if spec.exits.early_head == "lm_head" else _EMBEDDING
    return [early] * num_early + [final]


def head_names(spec: DecoderSpec) -> list[str]:
    """The head graph of each exit; exits with the same weights share one."""
    weights = head_weights(spec)
    return ["head" if weight == weights[-1] else f"head_{k}" for k, weight in enumerate(weights)]
