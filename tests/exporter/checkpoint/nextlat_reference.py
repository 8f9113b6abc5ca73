"""NextLat in plain torch, and a tiny checkpoint in the layout of its training code.

It is our own: no NextLat weights are public, so names, shapes and formulas are those its
repository is documented with (JaydenTeoh/NextLat, arXiv 2511.05963), and nothing here was run by
its code. Nothing of quatrain is imported, so that a mistake is not made twice.

`python tests/exporter/checkpoint/nextlat_reference.py FOLDER` writes what tests/golden/nextlat
holds.
"""

import sys
from pathlib import Path

import numpy as np
import torch
import yaml
from torch import Tensor
from torch.nn import functional

Weights = dict[str, Tensor]

VOCAB, HIDDEN, LAYERS, HEADS, EOS = 64, 32, 2, 2, 0
# Not the widths of NextLat's formulas, multiples of 128: a reader must take them from the shapes.
INNER, DYNAMICS = 80, 56
EPS, THETA = 1e-5, 10000.0

SETTINGS = {
    "block_size": 96,
    "vocab_size": VOCAB,
    "n_layer": LAYERS,
    "n_head": HEADS,
    "n_embd": HIDDEN,
    "dropout": 0.0,
    "bias": False,
    "context_length": 96,
    "eos_token_id": EOS,
    "lambda_kl": 1.0,
    "lambda_mse": 1.0,
    "lambda_ce": 1.0,
    "mtp_horizon": 4,
    "proj_factor": 1.0,
}


def list_shapes() -> dict[str, tuple[int, ...]]:
    """Stored names and shapes: the fused matrices are [3d, d] and [2f, d]."""
    shapes: dict[str, tuple[int, ...]] = {
        "token_embedding.weight": (VOCAB, HIDDEN),
        "lm_head.weight": (VOCAB, HIDDEN),
        "transformer.norm.weight": (HIDDEN,),
        "dynamics_model.norm_x.weight": (2 * HIDDEN,),
        "dynamics_model.mlp.0.weight": (DYNAMICS, 2 * HIDDEN),
        "dynamics_model.mlp.2.weight": (DYNAMICS, DYNAMICS),
        "dynamics_model.mlp.4.weight": (HIDDEN, DYNAMICS),
    }
    for i in range(LAYERS):
        block = f"transformer.blocks.{i}"
        shapes |= {
            f"{block}.ln_1.weight": (HIDDEN,),
            f"{block}.attn.c_attn.weight": (3 * HIDDEN, HIDDEN),
            f"{block}.attn.c_proj.weight": (HIDDEN, HIDDEN),
            f"{block}.ln_2.weight": (HIDDEN,),
            f"{block}.mlp.up.gate_up.weight": (2 * INNER, HIDDEN),
            f"{block}.mlp.down.weight": (HIDDEN, INNER),
        }
    return shapes


def make_weights() -> Weights:
    """Random weights; norms are around 1, so that a forgotten one shows."""
    generator = torch.Generator().manual_seed(0)
    weights = {}
    for name, shape in list_shapes().items():
        noise = torch.randn(shape, generator=generator)
        if len(shape) == 1:
            weights[name] = 1.0 + 0.2 * noise
        elif name == "token_embedding.weight":
            weights[name] = noise
        else:
            weights[name] = noise * shape[1] ** -0.5
    return weights


def norm(x: Tensor, weight: Tensor) -> Tensor:
    """What the class LayerNorm computes with bias=False: RMSNorm."""
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + EPS) * weight


def count_positions(tokens: Tensor) -> tuple[Tensor, Tensor]:
    """Position in its document, and number of the document, of each token of [T].

    An EOS opens a document and has position 0; tokens before the first one count from 1.
    """
    positions, documents = [], []
    position, document = 0, 0
    for token in tokens.tolist():
        position, document = (0, document + 1) if token == EOS else (position + 1, document)
        positions.append(position)
        documents.append(document)
    return torch.tensor(positions), torch.tensor(documents)


def rotate(x: Tensor, positions: Tensor) -> Tensor:
    """Rotary embedding of [heads, T, head_dim] in halves."""
    half = x.shape[-1] // 2
    frequencies = THETA ** (-torch.arange(half, dtype=x.dtype) / half)
    angles = positions.to(x.dtype)[:, None] * frequencies
    cos, sin = angles.cos(), angles.sin()
    first, second = x[..., :half], x[..., half:]
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)


def attend(x: Tensor, weights: Weights, prefix: str, places: tuple[Tensor, Tensor]) -> Tensor:
    """Causal attention of [T, d] inside each document."""
    positions, documents = places
    query, key, value = (
        part.reshape(len(x), HEADS, HIDDEN // HEADS).transpose(0, 1)
        for part in (x @ weights[f"{prefix}.c_attn.weight"].T).split(HIDDEN, dim=-1)
    )
    scores = rotate(query, positions) @ rotate(key, positions).transpose(1, 2)
    allowed = (documents[:, None] == documents[None, :]).tril()
    scores = (scores / (HIDDEN // HEADS) ** 0.5).masked_fill(~allowed, -torch.inf)
    mixed = (scores.softmax(-1) @ value).transpose(0, 1).reshape(len(x), HIDDEN)
    return mixed @ weights[f"{prefix}.c_proj.weight"].T


def compute_hidden(weights: Weights, tokens: Tensor) -> Tensor:
    """The states [T, d] of tokens [T] after the final norm, which the head reads."""
    places = count_positions(tokens)
    x = weights["token_embedding.weight"][tokens]
    for i in range(LAYERS):
        block = f"transformer.blocks.{i}"
        x = x + attend(norm(x, weights[f"{block}.ln_1.weight"]), weights, f"{block}.attn", places)
        normed = norm(x, weights[f"{block}.ln_2.weight"])
        inner = normed @ weights[f"{block}.mlp.up.gate_up.weight"].T
        gate, up = inner.split(INNER, dim=-1)
        x = x + (functional.silu(gate) * up) @ weights[f"{block}.mlp.down.weight"].T
    return norm(x, weights["transformer.norm.weight"])


def compute_logits(weights: Weights, hidden: Tensor) -> Tensor:
    """Logits of states, true or predicted."""
    return hidden @ weights["lm_head.weight"].T


def predict(weights: Weights, hidden: Tensor, tokens: Tensor) -> Tensor:
    """The next states, from states [N, d] and the tokens [N] that follow them."""
    embedded = weights["token_embedding.weight"][tokens]
    x = norm(torch.cat((embedded, hidden), dim=-1), weights["dynamics_model.norm_x.weight"])
    x = functional.gelu(x @ weights["dynamics_model.mlp.0.weight"].T)
    x = functional.gelu(x @ weights["dynamics_model.mlp.2.weight"].T)
    return hidden + x @ weights["dynamics_model.mlp.4.weight"].T


def fit_dynamics(weights: Weights, tokens: Tensor, steps: int) -> torch.optim.Optimizer:
    """Fit the dynamics to one run for a moment, so that some of the drafts on it are right."""
    parameters = [w.requires_grad_() for n, w in weights.items() if n.startswith("dynamics_model")]
    optimizer = torch.optim.AdamW(parameters, lr=2e-3)
    with torch.no_grad():
        hidden = compute_hidden(weights, tokens)
    for _ in range(steps):
        guess = predict(weights, hidden[:-1], tokens[1:])
        optimizer.zero_grad()
        functional.smooth_l1_loss(guess, hidden[1:]).backward()
        optimizer.step()
    for parameter in parameters:
        parameter.requires_grad_(False)
    return optimizer


def generate(weights: Weights, prompt: list[int], count: int) -> tuple[list[int], list[float]]:
    """Greedy tokens after the prompt, and by how much each led; the prefix is run anew."""
    tokens, margins = list(prompt), []
    for _ in range(count):
        logits = compute_logits(weights, compute_hidden(weights, torch.tensor(tokens))[-1])
        best = logits.topk(2)
        tokens.append(int(best.indices[0]))
        margins.append(float(best.values[0] - best.values[1]))
    return tokens[len(prompt) :], margins


def count_accepted(weights: Weights, prompt: list[int], run: list[int], count: int) -> list[int]:
    """How many of 4 drafts of each round are the tokens of a greedy run, until `count` are done.

    A round commits the ordinary next token and the drafts that match; the last one may go beyond.
    """
    tokens, done, accepted = prompt + run, len(prompt), []
    while done < len(prompt) + count:
        state = compute_hidden(weights, torch.tensor(tokens[:done]))[-1:]
        matches, following = 0, tokens[done]
        for k in range(4):
            state = predict(weights, state, torch.tensor([following]))
            following = int(compute_logits(weights, state).argmax())
            if following != tokens[done + 1 + k]:
                break
            matches += 1
        accepted.append(matches)
        done += 1 + matches
    return accepted


def save_checkpoint(folder: Path, weights: Weights, optimizer: torch.optim.Optimizer) -> None:
    """Write the .pt that Lightning Fabric would, and the settings beside it."""
    folder.mkdir(parents=True, exist_ok=True)
    saved = {
        "model": weights,
        "optimizer": optimizer.state_dict(),
        "training_steps": 7,
        "lr_scheduler_state": {"last_epoch": 7, "base_lrs": [2e-3]},
    }
    torch.save(saved, folder / "model.pt")
    (folder / "materialized_config.yaml").write_text(yaml.safe_dump(SETTINGS, sort_keys=False))


def make_golden(folder: Path) -> None:
    """Write the checkpoint and golden.npz."""
    weights = make_weights()
    generator = torch.Generator().manual_seed(1)
    inputs = torch.randint(1, VOCAB, (2, 20), generator=generator)
    inputs[0, [0, 7]] = EOS  # two documents, the first from the start
    inputs[1, [5, 12, 13]] = EOS  # four, one of a single token, the first without its EOS
    prompt = [EOS, *inputs[0, 1:6].tolist(), EOS, *inputs[1, 6:11].tolist()]
    count = 32
    run, margins = generate(weights, prompt, count + 4)
    optimizer = fit_dynamics(weights, torch.tensor(prompt + run), 60)
    hidden = torch.stack([compute_hidden(weights, row) for row in inputs])
    predicted = [predict(weights, h[:-1], row[1:]) for h, row in zip(hidden, inputs, strict=True)]
    save_checkpoint(folder / "checkpoint", weights, optimizer)
    np.savez_compressed(
        folder / "golden.npz",
        input_ids=inputs.numpy(),
        hidden=hidden.numpy(),
        logits=compute_logits(weights, hidden).numpy(),
        pred_hidden=torch.stack(predicted).numpy(),
        prompt_ids=np.array([prompt]),
        generated_ids=np.array(run[:count]),
        generated_margin=np.array(margins[:count], np.float32),
        accepted_per_round=np.array(count_accepted(weights, prompt, run, count)),
    )


if __name__ == "__main__":
    make_golden(Path(sys.argv[1]))
