"""The NumPy reference against transformers, for every backbone, on random tiny models."""

from pathlib import Path

import numpy as np
import pytest
import torch
from tests.exporter.decoder.test_backbones import (
    BACKBONES,
    LLAMA3_SCALING,
    make_llama,
    make_qwen2,
    make_qwen3,
    randomize,
    token_ids,
)
from transformers import PreTrainedModel, Qwen2ForCausalLM

from quatrain.exporter.checkpoint import open_checkpoint
from quatrain.exporter.reference import ReferenceDecoder

TOLERANCE = 1e-5  # of the largest magnitude
SLIDING = {"use_sliding_window": True, "sliding_window": 5, "attn_implementation": "eager"}
LAYERS = ["full_attention", "sliding_attention", "full_attention"]
# Of the four frequencies one is kept, one slowed, and one in between.
BLENDED = LLAMA3_SCALING | {"original_max_position_embeddings": 100}
MODELS = BACKBONES | {
    "llama3-rope-blended": lambda: make_llama(rope_parameters=BLENDED),
    "qwen2-windows": lambda: make_qwen2(max_window_layers=1, **SLIDING),
    "qwen3-window-of-a-layer": lambda: make_qwen3(layer_types=LAYERS, **SLIDING),
    "qwen3-biases": lambda: make_qwen3(attention_bias=True),
}


def save(model: PreTrainedModel, folder: Path) -> ReferenceDecoder:
    model.save_pretrained(folder)
    return ReferenceDecoder(open_checkpoint(folder))


@pytest.mark.parametrize("name", MODELS)
def test_states_and_logits_equal_transformers(name: str, tmp_path: Path) -> None:
    torch.manual_seed(7)
    model = randomize(MODELS[name]())
    decoder = save(model, tmp_path)
    ids = token_ids(2, 50)
    with torch.no_grad():
        expected = model(torch.from_numpy(ids), output_hidden_states=True, use_cache=True)
    taps = decoder.run(ids)
    # The last of transformers' hidden states is the normed one.
    pairs = {"logits": expected.logits, "hidden": expected.hidden_states[-1]}
    pairs["embedding"] = expected.hidden_states[0]
    for layer, state in enumerate(expected.hidden_states[1:-1]):
        pairs[f"layers.{layer}.output"] = state
    for layer, cache in enumerate(expected.past_key_values.layers):
        for kind in ("key", "value"):
            if cache.keys.shape[2] == 50:  # one that slides keeps the window only
                pairs[f"{kind}_cache.{layer}"] = getattr(cache, f"{kind}s")
    for tap, tensor in pairs.items():
        wanted = tensor.numpy()
        assert np.abs(taps[tap] - wanted).max() <= TOLERANCE * np.abs(wanted).max(), tap


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_weights_of_16_bits_are_widened(dtype: torch.dtype, tmp_path: Path) -> None:
    torch.manual_seed(7)
    decoder = save(randomize(make_qwen2(tie_word_embeddings=False)).to(dtype), tmp_path)
    ids = token_ids(1, 20)
    found = decoder.run(ids)["logits"]
    # Read anew: turning the model itself to 16 bits rounded its rotary frequencies too.
    model = Qwen2ForCausalLM.from_pretrained(tmp_path, dtype=torch.float32).eval()
    with torch.no_grad():
        expected = model(torch.from_numpy(ids)).logits.numpy()
    assert np.abs(found - expected).max() <= TOLERANCE * np.abs(expected).max()
