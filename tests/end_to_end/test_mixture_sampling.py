"""`sample` routing draws from the mixture over exits, exactly (trained sample model)."""

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from quatrain.exporter.export import export_checkpoint
from quatrain.runtime.decoding.scoring import score_exits
from quatrain.runtime.llm import LLM
from quatrain.runtime.sampling import SamplingParams
from quatrain.runtime.session import open_model

CHECKPOINT = Path(__file__).parents[2] / "samples" / "checkpoints" / "topics-nvium"
PROMPT = "The following"
NUM_DRAWS = 12_288
BATCH = 512
# A cell of the test expects at least this many draws; rarer tokens share one cell.
MIN_EXPECTED = 8.0


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("mixture") / "bundle"
    export_checkpoint(CHECKPOINT, path, max_batch=BATCH, max_seq_len=64, self_test=False)
    return path


@pytest.fixture(scope="module")
def prompt_ids(bundle: Path) -> list[int]:
    with LLM(bundle, backend="onnxruntime") as llm:
        return llm.encode(PROMPT)


@pytest.fixture(scope="module")
def exit_shares(bundle: Path, prompt_ids: list[int]) -> NDArray[np.float64]:
    """Probability of each exit at the last position of the prompt, float64 [N]."""
    with open_model(bundle, backend="onnxruntime") as model:
        scores = score_exits(model, np.array([prompt_ids]))
    return np.exp(scores.exit_logprobs[:, 0, -1].astype(np.float64))


@pytest.fixture(scope="module")
def mixture(bundle: Path, prompt_ids: list[int]) -> NDArray[np.float64]:
    """Probability of each next token, float64 [V]."""
    with LLM(bundle, backend="onnxruntime") as llm:
        return np.exp(llm.logits([prompt_ids])[0, -1].astype(np.float64))


@pytest.fixture(scope="module")
def draws(bundle: Path, prompt_ids: list[int]) -> NDArray[np.int64]:
    """(token, exit) of many first tokens, int64 [NUM_DRAWS, 2], seeds 0, 1, 2, ..."""
    found = []
    with LLM(bundle, backend="onnxruntime") as llm:
        params = [
            SamplingParams(temperature=1.0, max_tokens=1, seed=seed, ignore_eos=True)
            for seed in range(NUM_DRAWS)
        ]
        for result in llm.generate([prompt_ids] * NUM_DRAWS, params):
            assert result.exits is not None
            found.append((result.token_ids[0], result.exits[0]))
    return np.array(found)


def chi_square_excess(counts: NDArray[np.int64], probabilities: NDArray[np.float64]) -> float:
    """Pearson's statistic in standard deviations above its mean under the hypothesis.

    With df degrees of freedom it has mean df and variance 2 df; with many cells it is close to
    normal, so that 4 is less likely than 1 in 10,000.
    """
    expected = probabilities / probabilities.sum() * counts.sum()
    common = expected >= MIN_EXPECTED
    cells = np.append(counts[common], counts[~common].sum())
    wanted = np.append(expected[common], expected[~common].sum())
    wanted = np.maximum(wanted, 1e-9)
    degrees = len(cells) - 1
    statistic = float(((cells - wanted) ** 2 / wanted).sum())
    return (statistic - degrees) / np.sqrt(2.0 * degrees)


def test_probabilities_are_a_distribution(mixture, exit_shares):
    assert mixture.sum() == pytest.approx(1.0, abs=1e-4)
    assert exit_shares.sum() == pytest.approx(1.0, abs=1e-5)


def test_tokens_follow_the_mixture(draws, mixture):
    counts = np.bincount(draws[:, 0], minlength=len(mixture))
    assert (mixture * NUM_DRAWS >= MIN_EXPECTED).sum() >= 20, "the test would have no power"
    assert chi_square_excess(counts, mixture) < 4.0


def test_exits_follow_their_probabilities(draws, exit_shares):
    counts = np.bincount(draws[:, 1], minlength=len(exit_shares))
    assert chi_square_excess(counts, exit_shares) < 4.0


def test_the_test_tells_a_single_exit_from_the_mixture(bundle, prompt_ids, draws):
    """The same draws are no sample of any one exit's distribution."""
    with open_model(bundle, backend="onnxruntime") as model:
        logits = score_exits(model, np.array([prompt_ids])).exit_logits[:, 0, -1].astype(np.float64)
    counts = np.bincount(draws[:, 0], minlength=logits.shape[-1])
    for exit_logits in logits:
        probabilities = np.exp(exit_logits - exit_logits.max())
        assert chi_square_excess(counts, probabilities) > 10.0
