"""Fits to what the model writes itself: what is written, gone on with, measured and refused."""

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.exporter.checkpoint.folders import DENSE, random_tensors, write_checkpoint

from quatrain.exporter import export_checkpoint, fit_drafter, open_checkpoint
from quatrain.exporter.drafting import continuation as continuation_module
from quatrain.exporter.drafting.continuation import Continuation, continue_prompts
from quatrain.exporter.drafting.work_folder import DraftingFolder
from quatrain.exporter.errors import ExportError
from quatrain.exporter.progress import Progress
from quatrain.runtime import LLM, SamplingParams
from quatrain.runtime.errors import BundleError

FAST: dict[str, Any] = {"window": 16, "continue_tokens": 10, "inner": 8, "steps": 4, "batch": 16}
WEIGHTS = "model-00002-of-00002.safetensors"


@pytest.fixture
def ids(tmp_path: Path) -> Path:
    """110 tokens: 18 prompts of 6, so three batches of 8 but for the last."""
    path = tmp_path / "ids.npy"
    np.save(path, np.random.default_rng(1).integers(0, 48, 110))
    return path


def write(source: Path, work: Path, prompts: np.ndarray, temperature: float) -> np.ndarray:
    folder = DraftingFolder(work, {"text": "1"})
    own = Continuation(10, temperature)
    return continue_prompts(open_checkpoint(source), prompts, own, folder, Progress())


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_windows_end_in_what_the_model_writes(
    tmp_path: Path, source: Path, temperature: float
) -> None:
    prompts = np.random.default_rng(2).integers(0, 48, (9, 6))
    windows = write(source, tmp_path / "work", prompts, temperature)
    assert windows.shape == (9, 16) and windows.dtype == np.int64
    assert np.array_equal(windows[:, :6], prompts)
    export_checkpoint(source, tmp_path / "bundle", self_test=False)
    with LLM(tmp_path / "bundle") as llm:
        for row, window in enumerate(windows.tolist()):
            params = SamplingParams(temperature, seed=row, max_tokens=10, ignore_eos=True)
            assert list(llm.generate([window[:6]], params)[0].token_ids) == window[6:]
    assert set(os.listdir(tmp_path / "work")) == {"calibration.json", "written.i64"}


def test_windows_drawn_from_one_prompt_differ(tmp_path: Path, source: Path) -> None:
    prompts = np.tile(np.arange(6), (9, 1))
    assert len(np.unique(write(source, tmp_path / "drawn", prompts, 1.0), axis=0)) > 1
    assert len(np.unique(write(source, tmp_path / "likeliest", prompts, 0.0), axis=0)) == 1


def test_a_fit_tells_what_the_model_wrote(tmp_path: Path, source: Path, ids: Path) -> None:
    report = fit_drafter(source, tmp_path / "out", text=ids, continue_temperature=0.5, **FAST)
    assert report.continuation == Continuation(10, 0.5)
    # 18 windows, 2 of them held out: whole ones are fitted to; there, what was written counts.
    assert (report.fitted_tokens, report.held_out_tokens) == (16 * 16, 2 * 11)
    assert report.quality.num_positions == 2 * (11 - 4)
    assert not (tmp_path / "out.partial").exists()


def test_an_interrupted_fit_goes_on_and_gives_the_same(
    tmp_path: Path, source: Path, ids: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fit_drafter(source, tmp_path / "whole", text=ids, **FAST)
    write_batch, asked = continuation_module._write_batch, []

    def write_some(*args: Any) -> Any:
        asked.append(args[2])
        if len(asked) == 3:
            raise KeyboardInterrupt
        return write_batch(*args)

    monkeypatch.setattr(continuation_module, "_write_batch", write_some)
    with pytest.raises(KeyboardInterrupt):
        fit_drafter(source, tmp_path / "out", text=ids, **FAST)
    partial = tmp_path / "out.partial"
    assert set(os.listdir(partial)) == {"calibration.json", "written.i64"}
    assert (partial / "written.i64").stat().st_size == 16 * 10 * 8
    os.truncate(partial / "written.i64", 13 * 10 * 8 + 5)  # in the middle of the second batch
    lines: list[str] = []
    fit_drafter(source, tmp_path / "out", text=ids, **FAST, progress=Progress(lines.append))
    assert "  going on after 1 of 3 batches" in lines
    assert asked[3:] == [range(8, 16), range(16, 18)]
    assert (tmp_path / "out" / WEIGHTS).read_bytes() == (tmp_path / "whole" / WEIGHTS).read_bytes()


def test_a_named_work_folder_serves_other_trainings_and_no_other_text(
    tmp_path: Path, source: Path, ids: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    work = tmp_path / "work"
    fit_drafter(source, tmp_path / "8", text=ids, work=work, **FAST)
    monkeypatch.delattr(continuation_module, "_write_batch")  # nothing is written again
    fit_drafter(source, tmp_path / "9", text=ids, work=work, **{**FAST, "inner": 9})
    flags = r"go on with the work[\s\S]*another --continue-tokens or --continue-temperature"
    with pytest.raises(ExportError, match=flags):
        fit_drafter(source, tmp_path / "10", text=ids, work=work, continue_temperature=0.1, **FAST)


def test_more_than_was_asked_for_is_cut(tmp_path: Path) -> None:
    folder = DraftingFolder(tmp_path / "work", {"text": "1"})
    folder.append_written(np.arange(30).reshape(10, 3))
    assert folder.count_written(3, batch=4, most=9) == 9
    assert folder.load_written(9, 3, 30).tolist() == np.arange(27).reshape(9, 3).tolist()
    assert folder.count_written(3, batch=4, most=12) == 8


@pytest.mark.parametrize("token", [-1, 48])
def test_damaged_text_is_refused(tmp_path: Path, source: Path, ids: Path, token: int) -> None:
    work = tmp_path / "work"
    fit_drafter(source, tmp_path / "first", text=ids, work=work, **FAST)
    written = np.fromfile(work / "written.i64", "<i8")
    written[7] = token
    written.tofile(work / "written.i64")
    with pytest.raises(ExportError, match=r"written\.i64 is damaged"):
        fit_drafter(source, tmp_path / "out", text=ids, work=work, **FAST)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"continue_tokens": -1}, r"-1 of them written[\s\S]*from 4 to 14"),
        ({"continue_tokens": 3}, r"3 of them written[\s\S]*from 4 to 14"),
        ({"continue_tokens": 15}, r"15 of them written[\s\S]*from 4 to 14"),
        ({"window": 65}, r"windows of 65[\s\S]*64 positions"),
        ({"continue_temperature": -0.5}, "--continue-temperature -0.5"),
        ({"continue_temperature": float("inf")}, "--continue-temperature inf"),
        ({"continue_temperature": 1.0, "continue_tokens": 0}, "the model writes nothing"),
        ({"continue_temperature": 0.0, "continue_tokens": 0}, "the model writes nothing"),
        ({"tokens": 11}, "11 tokens, too few"),
    ],
)
def test_settings_that_cannot_be_are_refused(
    tmp_path: Path, source: Path, ids: Path, settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(ExportError, match=message):
        fit_drafter(source, tmp_path / "out", text=ids, **{**FAST, **settings})
    assert set(os.listdir(tmp_path)) == {"dense", "ids.npy"}


def test_weights_that_are_not_finite_are_told(tmp_path: Path, ids: Path) -> None:
    tensors = random_tensors(DENSE, np.float32)
    tensors["model.layers.0.self_attn.o_proj.weight"][0, 0] = np.nan
    source = write_checkpoint(tmp_path / "broken", tensors)
    with pytest.raises(BundleError, match="the model produced nan"):
        fit_drafter(source, tmp_path / "out", text=ids, **FAST)
    assert not (tmp_path / "out").exists()
