"""The golden N-vium model and a small dense one, opened once."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import numpy as np
import pytest
from numpy.typing import NDArray
from safetensors.numpy import save_file

from quatrain.exporter import export_checkpoint
from quatrain.exporter.checkpoint.names import expected_tensors
from quatrain.exporter.spec import Backbone, DecoderSpec
from quatrain.runtime.session import Model, open_model

Golden = dict[str, NDArray[np.generic]]

DENSE = Backbone("llama", 61, 24, 40, 3, 4, 2, 6, 120)


@pytest.fixture(scope="session")
def golden(root: Path) -> Golden:
    """What the reference implementation of N-vium computed; tests/golden holds the sizes."""
    with np.load(root / "tests" / "golden" / "nvium" / "golden.npz") as arrays:
        return dict(arrays)


@pytest.fixture(scope="session")
def nvium(nvium_bundle: Path) -> Iterator[Model]:
    """The golden model."""
    with open_model(nvium_bundle, backend="onnxruntime", threads=1) as model:
        yield model


@pytest.fixture(scope="session")
def full_nvium(nvium_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Model]:
    """The golden model with room for 47 tokens and one position of padding."""
    bundle = tmp_path_factory.mktemp("full") / "bundle"
    export_checkpoint(nvium_checkpoint, bundle, max_seq_len=47, self_test=False)
    with open_model(bundle, backend="onnxruntime", threads=1) as model:
        assert model.manifest.cache.capacity == 48
        yield model


@pytest.fixture(scope="session")
def dense(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Model]:
    """A dense model of random weights, with room for 103 tokens and one position of padding."""
    folder = tmp_path_factory.mktemp("dense")
    rng = np.random.default_rng(5)
    shapes = expected_tensors(DecoderSpec(DENSE))
    tensors = {name: rng.normal(0, 0.3, s).astype(np.float32) for name, s in shapes.items()}
    save_file(tensors, folder / "model.safetensors")
    names = ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "head_dim")
    names += ("num_attention_heads", "num_key_value_heads", "max_position_embeddings")
    config = {name: getattr(DENSE, name) for name in names}
    config |= {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "rms_norm_eps": 1e-6}
    (folder / "config.json").write_text(json.dumps(config))
    export_checkpoint(folder, folder / "bundle", max_seq_len=103, self_test=False)
    with open_model(folder / "bundle", backend="onnxruntime", threads=1) as model:
        yield model


@pytest.fixture(scope="session")
def limit() -> Callable[..., Model]:
    """Makes the same model with other limits, over the same sessions."""

    def change(model: Model, **limits: int) -> Model:
        manifest = model.manifest
        changed = msgspec.structs.replace(manifest.limits, **limits)
        manifest = msgspec.structs.replace(manifest, limits=changed)
        return Model(model.bundle, manifest, model.sessions, model.backend, model.reason)

    return change
