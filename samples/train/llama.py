"""A plain Llama decoder whose parameters carry the public tensor names."""

from abc import ABC, abstractmethod
from dataclasses import asdict, dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

Rope = tuple[Tensor, Tensor]


@dataclass(frozen=True, slots=True)
class LlamaSettings:
    """Shape of the backbone, in the field names of Hugging Face's LlamaConfig."""

    vocab_size: int = 1024
    hidden_size: int = 96
    intermediate_size: int = 256
    num_hidden_layers: int = 8
    num_attention_heads: int = 3
    num_key_value_heads: int = 3
    head_dim: int = 32
    max_position_embeddings: int = 1024
    rms_norm_eps: float = 1e-6
    rope_theta: float = 10000.0
    initializer_range: float = 0.05

    def __post_init__(self) -> None:
        if self.num_key_value_heads != self.num_attention_heads:
            raise ValueError("this backbone has as many key/value heads as query heads")

    def as_dict(self) -> dict[str, object]:
        """Fields by name."""
        return asdict(self)


class LanguageModel(nn.Module, ABC):
    """What the training loop asks of a family."""

    @abstractmethod
    def compute_loss(self, tokens: Tensor, targets: Tensor, progress: float) -> Tensor:
        """Scalar to minimise; `progress` is the share of steps already taken."""

    @abstractmethod
    def target_logprobs(self, tokens: Tensor, targets: Tensor) -> Tensor:
        """log p(target) [B, T] of the distribution the model generates from."""


class RMSNorm(nn.Module):
    """x / rms(x) * weight over the last axis."""

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        """Same shape as x."""
        return functional.rms_norm(x, self.weight.shape, self.weight, self.eps)


def build_rope(length: int, settings: LlamaSettings) -> Rope:
    """cos and sin [T, head_dim] of rotary positions (arXiv 2104.09864), halves repeated."""
    half = torch.arange(0, settings.head_dim, 2) / settings.head_dim
    angles = torch.outer(torch.arange(length).float(), settings.rope_theta**-half)
    angles = torch.cat((angles, angles), dim=-1)
    return angles.cos(), angles.sin()


def apply_rope(x: Tensor, rope: Rope) -> Tensor:
    """Rotate the pair (i, i + D/2) of each head by its position's angle."""
    low, high = x.chunk(2, dim=-1)
    return x * rope[0] + torch.cat((-high, low), dim=-1) * rope[1]


class Past:
    """Keys and values [B, heads, `room`, D] of a layer, of the tokens it has seen."""

    def __init__(self, batch: int, room: int, settings: LlamaSettings) -> None:
        shape = (batch, settings.num_attention_heads, room, settings.head_dim)
        self._keys, self._values = torch.zeros(shape), torch.zeros(shape)
        self._length = 0

    def extend(self, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """All there are, with those of the next tokens [B, heads, T, D] behind."""
        start, self._length = self._length, self._length + keys.shape[2]
        self._keys[:, :, start : self._length] = keys
        self._values[:, :, start : self._length] = values
        return self._keys[:, :, : self._length], self._values[:, :, : self._length]


class Attention(nn.Module):
    """Causal self-attention over [B, T, hidden]."""

    def __init__(self, settings: LlamaSettings) -> None:
        super().__init__()
        self.head_dim = settings.head_dim
        inner = settings.num_attention_heads * settings.head_dim
        self.q_proj = nn.Linear(settings.hidden_size, inner, bias=False)
        self.k_proj = nn.Linear(settings.hidden_size, inner, bias=False)
        self.v_proj = nn.Linear(settings.hidden_size, inner, bias=False)
        self.o_proj = nn.Linear(inner, settings.hidden_size, bias=False)

    def split_heads(self, x: Tensor) -> Tensor:
        """[B, T, heads * D] to [B, heads, T, D]."""
        return x.view(*x.shape[:2], -1, self.head_dim).transpose(1, 2)

    def forward(
        self, x: Tensor, rope: Rope, mask: Tensor | None = None, past: Past | None = None
    ) -> Tensor:
        """Same shape as x; `mask` [.., T, T] is True where a row may look, None is causal.

        Behind a `past` of S tokens the mask is needed, and [.., T, S + T].
        """
        queries = apply_rope(self.split_heads(self.q_proj(x)), rope)
        keys = apply_rope(self.split_heads(self.k_proj(x)), rope)
        values = self.split_heads(self.v_proj(x))
        if past is not None:
            keys, values = past.extend(keys, values)
        mixed = functional.scaled_dot_product_attention(
            queries, keys, values, attn_mask=mask, is_causal=mask is None
        )
        projected: Tensor = self.o_proj(mixed.transpose(1, 2).flatten(2))
        return projected


class FeedForward(nn.Module):
    """down(SiLU(gate(x)) * up(x))."""

    def __init__(self, settings: LlamaSettings) -> None:
        super().__init__()
        width, inner = settings.hidden_size, settings.intermediate_size
        self.gate_proj = nn.Linear(width, inner, bias=False)
        self.up_proj = nn.Linear(width, inner, bias=False)
        self.down_proj = nn.Linear(inner, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Same shape as x."""
        projected: Tensor = self.down_proj(functional.silu(self.gate_proj(x)) * self.up_proj(x))
        return projected


class DecoderLayer(nn.Module):
    """Attention and feed-forward, each behind a norm and around a residual."""

    def __init__(self, settings: LlamaSettings) -> None:
        super().__init__()
        self.input_layernorm = RMSNorm(settings.hidden_size, settings.rms_norm_eps)
        self.self_attn = Attention(settings)
        self.post_attention_layernorm = RMSNorm(settings.hidden_size, settings.rms_norm_eps)
        self.mlp = FeedForward(settings)

    def forward(
        self, x: Tensor, rope: Rope, mask: Tensor | None = None, past: Past | None = None
    ) -> Tensor:
        """Same shape as x; `mask` and `past` as in `Attention`."""
        x = x + self.self_attn(self.input_layernorm(x), rope, mask, past)
        output: Tensor = x + self.mlp(self.post_attention_layernorm(x))
        return output


class Backbone(nn.Module):
    """Embedding, layers and last norm: everything named model.*."""

    def __init__(self, settings: LlamaSettings) -> None:
        super().__init__()
        self.settings = settings
        self.embed_tokens = nn.Embedding(settings.vocab_size, settings.hidden_size)
        self.layers = nn.ModuleList(
            DecoderLayer(settings) for _ in range(settings.num_hidden_layers)
        )
        self.norm = RMSNorm(settings.hidden_size, settings.rms_norm_eps)

    def build_mask(self, tokens: Tensor) -> Tensor | None:
        """Where each of the tokens [B, T] may look, [.., T, T]; None: at all up to itself."""
        return None

    def run_layers(self, tokens: Tensor) -> list[Tensor]:
        """States [B, T, hidden] after 0, 1, .. and all layers, before any norm."""
        rope, mask = build_rope(tokens.shape[1], self.settings), self.build_mask(tokens)
        states = [self.embed_tokens(tokens)]
        for layer in self.layers:
            states.append(layer(states[-1], rope, mask))
        return states


class DenseLlama(LanguageModel):
    """The baseline: the backbone and one head, no exits."""

    def __init__(self, settings: LlamaSettings, backbone: Backbone | None = None) -> None:
        super().__init__()
        self.model = backbone or Backbone(settings)
        self.lm_head = nn.Linear(settings.hidden_size, settings.vocab_size, bias=False)
        init_weights(self, settings.initializer_range)

    def compute_states(self, tokens: Tensor) -> Tensor:
        """norm(h_L) [B, T, hidden]: what the head reads."""
        states: Tensor = self.model.norm(self.model.run_layers(tokens)[-1])
        return states

    def compute_logits(self, tokens: Tensor) -> Tensor:
        """lm_head(norm(h_L)) [B, T, vocab]."""
        logits: Tensor = self.lm_head(self.compute_states(tokens))
        return logits

    def target_logprobs(self, tokens: Tensor, targets: Tensor) -> Tensor:
        """log softmax(logits)[target]."""
        return pick_logprobs(self.compute_logits(tokens), targets)

    def compute_loss(self, tokens: Tensor, targets: Tensor, progress: float) -> Tensor:
        """Mean negative log likelihood."""
        return -self.target_logprobs(tokens, targets).mean()


def pick_logprobs(logits: Tensor, targets: Tensor) -> Tensor:
    """log_softmax(logits [.., V])[targets [..]]."""
    picked = logits.gather(-1, targets[..., None]).squeeze(-1)
    return picked - logits.logsumexp(dim=-1)


def init_weights(model: nn.Module, std: float) -> None:
    """Normal matrices, zero biases; norms stay at one."""
    for module in model.modules():
        if isinstance(module, nn.Linear | nn.Embedding):
            nn.init.normal_(module.weight, std=std)
            if isinstance(module, nn.Linear) and module.bias is not None:
                nn.init.zeros_(module.bias)
