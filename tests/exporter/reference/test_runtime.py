"""The NumPy reference and the runtime say the same of the samples, and fill the same caches."""

from pathlib import Path

import numpy as np
import pytest
from tests.exporter.checkpoint.folders import GOLDEN

from quatrain.exporter import export_checkpoint, open_checkpoint
from quatrain.exporter.reference import ReferenceDecoder
from quatrain.runtime import LLM
from quatrain.runtime.decoding.plain import PlainDecoder
from quatrain.runtime.session import open_model

TOLERANCE = 1e-4  # of the largest magnitude: two sets of kernels
IDS = np.random.default_rng(8).integers(0, 500, (2, 40))


@pytest.mark.parametrize(
    ("sample", "scores"), [("topics-dense", "logits"), ("topics-nvium", "mixture_logprobs")]
)
def test_scores_of_a_sample(root: Path, tmp_path: Path, sample: str, scores: str) -> None:
    checkpoint = root / "samples" / "checkpoints" / sample
    export_checkpoint(checkpoint, tmp_path / "bundle", self_test=False)
    expected = ReferenceDecoder(open_checkpoint(checkpoint)).run(IDS)[scores]
    with LLM(tmp_path / "bundle", backend="onnxruntime") as llm:
        found = llm.logits(IDS)
    assert np.abs(found - expected).max() <= TOLERANCE * np.abs(expected).max()


@pytest.mark.parametrize(
    "family", ["hidden_decoding", "hidden_decoding_sfa", "hidden_decoding_mirror", "nextlat"]
)
def test_caches(tmp_path: Path, family: str) -> None:
    """Rows, folded streams, mirrored layers and documents, in the layout of the manifest."""
    source = open_checkpoint(GOLDEN / family / "checkpoint")
    export_checkpoint(source.folder, tmp_path / "bundle", prefill_chunk=7, self_test=False)
    ids = IDS[:, :20] % source.spec.backbone.vocab_size
    if source.document_token_id is not None:
        ids[:, [0, 9]] = source.document_token_id
    taps = ReferenceDecoder(source).run(ids)
    with open_model(tmp_path / "bundle", backend="onnxruntime") as model:
        decoder = PlainDecoder(model, len(ids))
        decoder.feed(ids.tolist())
        tensors = {name: t.array.copy() for name, t in decoder.cache.tensors.items()}
    assert tensors
    for name, cache in tensors.items():
        expected = taps[name]
        found = cache[:, :, : expected.shape[2]]
        # Where only the last stream's rows are read later, a bundle keeps no others.
        expected = expected[:, -cache.shape[1] :]
        assert found.shape == expected.shape, name
        assert np.abs(found - expected).max() <= TOLERANCE * np.abs(expected).max(), name
