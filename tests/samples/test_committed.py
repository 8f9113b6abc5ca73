"""The committed checkpoints: they are found, score and draft as stated, and stay small."""

from pathlib import Path

import pytest
import torch
from tests.samples.sample_models import COMMITTED, build_named
from tokenizers import Tokenizer
from torch import Tensor

from quatrain.exporter import export_checkpoint
from quatrain.runtime import LLM, SamplingParams
from samples.train.drafts import MAX_DRAFT, PROMPT_LENGTH, cut_prompts
from samples.train.evaluate import score_text
from samples.train.fabric import load_fabric
from samples.train.llama import DenseLlama
from samples.train.load import check_tokenizer, find_checkpoint, load_weights
from samples.train.nvium import NviumLlama
from samples.train.tokenizer import encode_text


def test_weights_of_another_vocabulary_are_refused() -> None:
    folder = COMMITTED / "topics-dense"
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    check_tokenizer(folder, tokenizer)
    tokenizer.add_tokens(["another"])
    with pytest.raises(ValueError, match="another tokenizer"):
        check_tokenizer(folder, tokenizer)


def test_own_folder_comes_before_the_committed_one(tmp_path: Path) -> None:
    assert find_checkpoint("topics-dense", (tmp_path, COMMITTED)).parent == COMMITTED
    (tmp_path / "topics-dense").mkdir()
    (tmp_path / "topics-dense" / "model.safetensors").touch()
    assert find_checkpoint("topics-dense", (tmp_path, COMMITTED)).parent == tmp_path
    with pytest.raises(FileNotFoundError, match="no topics-none in"):
        find_checkpoint("topics-none", (tmp_path, COMMITTED))


def load_committed(name: str) -> tuple[DenseLlama | NviumLlama, Tensor]:
    """The model and the held-out ids."""
    folder, text = COMMITTED / name, (COMMITTED / "heldout.txt").read_text(encoding="utf-8")
    model = build_named(name)
    if name == "topics-nextlat":
        load_fabric(model, folder, num_layers=8)
    else:
        load_weights(model, folder)
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    return model, torch.tensor(encode_text(tokenizer, text))


@pytest.mark.parametrize(
    ("name", "perplexity"),
    [
        ("topics-dense", 34.284),
        ("topics-nvium", 35.078),
        ("topics-hidden-decoding", 32.383),
        ("topics-bank-topk", 33.425),
        ("topics-hilp", 37.488),
        ("topics-nextlat", 31.276),
    ],
)
def test_committed_checkpoints_score_as_stated(name: str, perplexity: float) -> None:
    model, ids = load_committed(name)
    score = score_text(model, ids, num_bytes=30723)
    assert score.perplexity == pytest.approx(perplexity, rel=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "along_greedy"), [("topics-hilp", 3.150), ("topics-nextlat", 2.465)]
)
def test_committed_checkpoints_draft_as_stated(
    name: str, along_greedy: float, tmp_path: Path
) -> None:
    """By the runtime, behind the README's prompts, and with its way of counting."""
    _, ids = load_committed(name)
    export_checkpoint(COMMITTED / name, tmp_path / "bundle", drafter=True, self_test=False)
    steps: list[float] = []
    params = SamplingParams(temperature=0.0, max_tokens=64, ignore_eos=True)
    with LLM(tmp_path / "bundle", draft=MAX_DRAFT) as llm:
        for prompt in cut_prompts(ids, PROMPT_LENGTH, 256).tolist():
            llm.generate([prompt], params)
            statistics = llm.stats.draft
            assert statistics is not None
            steps.append(statistics.accepted_per_step)
    assert sum(steps) / len(steps) == pytest.approx(along_greedy, rel=0.03)


@pytest.mark.parametrize("name", ["topics-hilp", "topics-nextlat"])
def test_committed_checkpoints_stay_small(name: str) -> None:
    files = [
        path for path in (COMMITTED / name).iterdir() if path.suffix in (".safetensors", ".pt")
    ]
    assert len(files) == 1
    assert files[0].stat().st_size < 3_000_000
