"""The NumPy reference against torch, for every way in which a decoder differs from a plain one.

The models and the torch side are those that the exported graphs are held to.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file, save_file
from tests.exporter.decoder import test_bank_topk_variants as banks
from tests.exporter.decoder import test_nvium_variants as nvium
from tests.exporter.decoder import test_stream_variants as streams
from tests.exporter.decoder.test_backbones import make_llama, token_ids
from torch.nn import functional

from quatrain.exporter.checkpoint import open_checkpoint
from quatrain.exporter.reference import ReferenceDecoder, Taps

TOLERANCE = 1e-5  # of the largest magnitude


def run(folder: Path, ids: NDArray[np.int64]) -> Taps:
    return ReferenceDecoder(open_checkpoint(folder)).run(ids)


def assert_close(found: NDArray[Any], expected: torch.Tensor) -> None:
    wanted = expected.detach().numpy()
    assert found.shape == wanted.shape
    assert np.abs(found - wanted).max() <= TOLERANCE * np.abs(wanted).max()


@pytest.mark.parametrize("name", streams.VARIANTS)
def test_streams(name: str, tmp_path: Path) -> None:
    model = streams.Model(streams.VARIANTS[name], tmp_path / "checkpoint")
    ids = np.random.default_rng(5).integers(0, streams.VOCAB, (2, 20))
    found = run(tmp_path / "checkpoint", ids)["logits"]
    assert_close(found, torch.from_numpy(model.logits(ids)))


@pytest.mark.parametrize("name", banks.VARIANTS)
def test_banks(name: str, tmp_path: Path) -> None:
    torch.manual_seed(3)
    base, settings = banks.VARIANTS[name]
    model = banks.make_model(base, settings)
    model.save_pretrained(tmp_path)
    path = tmp_path / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | settings.config()))
    ids = np.random.default_rng(0).integers(0, banks.VOCAB, (2, 20))
    taps = run(tmp_path, ids)
    assert_close(taps["logits"], torch.from_numpy(banks.expected_logits(model, ids)))
    choosing = [layer for layer in range(3) if f"layers.{layer}.active_channels" in taps]
    assert set(choosing) == {0, 1, 2} - set(settings.dense_fallback_layers)
    for layer in choosing:
        active = taps[f"layers.{layer}.active_channels"]
        counts = active.reshape(2, 20, -1, settings.bank_size).sum(-1)
        assert (counts == settings.top_k).all()


@pytest.mark.parametrize("name", nvium.VARIANTS)
def test_exits(name: str, tmp_path: Path) -> None:
    torch.manual_seed(len(name))
    variant = nvium.Variant(**nvium.VARIANTS[name])
    variant.write(tmp_path)
    ids = np.random.default_rng(0).integers(0, nvium.VOCAB, (2, 20))
    logits, log_probs = variant.score(ids)
    taps = run(tmp_path, ids)
    for k in range(len(logits)):
        assert_close(taps[f"exits.{k}.logits"], logits[k])
        assert_close(taps[f"exits.{k}.logprob"], log_probs[k])
    mixture = torch.logsumexp(log_probs[..., None] + torch.log_softmax(logits, -1), 0)
    assert_close(taps["mixture_logprobs"], mixture)


@pytest.mark.parametrize("residual", [True, False])
@pytest.mark.parametrize("kind", ["glu_cross", "concat"])
def test_hilp(kind: str, residual: bool, tmp_path: Path) -> None:
    torch.manual_seed(2)
    model = make_llama(tie_word_embeddings=True).eval()
    model.save_pretrained(tmp_path)
    weights = {name: torch.randn(shape) * 0.1 for name, shape in list_hilp(kind, 48, 56).items()}
    file = tmp_path / "model.safetensors"
    stored = {f"lower_dynamics.{name}.weight": weight for name, weight in weights.items()}
    save_file(load_file(file) | stored, file)
    path = tmp_path / "config.json"
    config = json.loads(path.read_text()) | {"hilp": {"drafter": kind, "residual": residual}}
    path.write_text(json.dumps(config))
    ids = token_ids(2, 9)
    taps = run(tmp_path, ids)
    state = torch.from_numpy(taps["hidden"])
    embeddings = model.model.embed_tokens.weight[torch.from_numpy(ids)]
    for j in range(1, 5):
        state, e = state[:, :-1], embeddings[:, j:]
        fused = torch.cat((state, e), -1)
        if kind == "glu_cross":
            fused = state @ weights["w_h"].T * (e @ weights["w_e"].T).sigmoid()
        inner = functional.silu(fused @ weights["gate"].T) * (fused @ weights["up"].T)
        state = inner @ weights["down"].T + (state if residual else 0)
        assert_close(taps[f"draft.{j}.state"], state)
        assert_close(taps[f"draft.{j}.logits"], state @ model.lm_head.weight.T)


def list_hilp(kind: str, hidden: int, inner: int) -> dict[str, tuple[int, int]]:
    width = hidden if kind == "glu_cross" else 2 * hidden
    shapes = {"gate": (inner, width), "up": (inner, width), "down": (hidden, inner)}
    if kind == "glu_cross":
        shapes |= {"w_h": (hidden, hidden), "w_e": (hidden, hidden)}
    return shapes
