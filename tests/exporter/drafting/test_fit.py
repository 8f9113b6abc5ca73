"""Fits of drafters: what is written, what is refused, and that an interrupted one goes on."""

import json
import os
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from tests.exporter.checkpoint.folders import (
    BACKBONE,
    DENSE,
    random_tensors,
    write_checkpoint,
    write_nvium,
    write_source,
)
from tests.exporter.resumed_work import change_ground

from quatrain.exporter import export_checkpoint, fit_drafter, open_checkpoint
from quatrain.exporter.drafting import states as states_module
from quatrain.exporter.drafting.states import collect_states
from quatrain.exporter.drafting.work_folder import DraftingFolder
from quatrain.exporter.errors import ExportError
from quatrain.exporter.progress import Progress
from quatrain.exporter.spec import DecoderSpec, Drafter, Streams
from quatrain.runtime import LLM

FAST: dict[str, Any] = {"window": 16, "inner": 8, "steps": 6, "batch": 16}
PARTS = ("w_h", "w_e", "gate", "up", "down")


# --- what is written ---


def test_the_result_is_the_source_with_dynamics(tmp_path: Path, source: Path, ids: Path) -> None:
    lines: list[str] = []
    out = tmp_path / "out"
    report = fit_drafter(source, out, text=ids, **FAST, progress=Progress(lines.append))
    made = open_checkpoint(out)
    assert made.spec.drafter == report.drafter == Drafter("glu_cross", 8, residual=True)
    assert made.leftovers == []
    shapes = {part: made.tensors[f"lower_dynamics.{part}.weight"].shape for part in PARTS}
    assert shapes == dict(zip(PARTS, [(16, 16), (16, 16), (8, 16), (8, 16), (16, 8)], strict=True))
    config = json.loads((out / "config.json").read_text())
    assert config == json.loads((source / "config.json").read_text()) | {
        "architectures": ["LlamaHiLPForCausalLM"],
        "hilp": {"window": 4, "drafter": "glu_cross", "residual": True},
    }
    assert (out / "model-00001-of-00002.safetensors").samefile(source / "model.safetensors")
    assert report.new_parameters == 2 * 16 * 16 + 3 * 8 * 16 and report.family == "hilp"
    assert report.new_bytes == 4 * report.new_parameters
    assert (report.fitted_tokens, report.held_out_tokens) == (18 * 16, 2 * 16)
    assert len(report.quality.draft_shares) == 4 and report.quality.num_positions == 2 * 12
    assert set(os.listdir(tmp_path)) == {"dense", "ids.npy", "out"}


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
def test_it_is_stored_as_the_source_and_generates_the_same_text(
    tmp_path: Path, ids: Path, dtype: Any
) -> None:
    source = write_source(tmp_path / "dense", dtype)
    fit_drafter(source, tmp_path / "out", text=ids, **FAST)
    assert len({tensor.dtype for tensor in open_checkpoint(tmp_path / "out").tensors.values()}) == 1
    found = []
    for folder in (source, tmp_path / "out"):
        bundle = tmp_path / f"{folder.name}-bundle"
        export_checkpoint(folder, bundle, self_test=False)
        with LLM(bundle) as llm:
            found.append(llm.logits([1, 2, 3]))
    assert np.array_equal(*found)


def test_states_are_what_the_head_reads(tmp_path: Path, source: Path) -> None:
    opened = open_checkpoint(source)
    token_ids = np.arange(24).reshape(2, 12) * 2
    work = DraftingFolder(tmp_path / "work", {"text": "1"})
    states = collect_states(opened, token_ids, work, Progress())
    assert states.shape == (2, 12, 16) and states.dtype == np.float16
    export_checkpoint(source, tmp_path / "bundle", self_test=False)
    head = opened.tensors["lm_head.weight"].read().astype(np.float32)
    with LLM(tmp_path / "bundle") as llm:
        for row, tokens in zip(states, token_ids.tolist(), strict=True):
            logits = llm.logits(tokens)
            assert np.allclose(row.astype(np.float32) @ head.T, logits, atol=2e-2)


def test_the_dynamics_learn_something_of_a_backbone(tmp_path: Path, source: Path) -> None:
    ids = tmp_path / "ids.npy"
    np.save(ids, np.tile(np.arange(12), 60))
    settings: dict[str, Any] = {"window": 16, "steps": 150, "batch": 64, "learning_rate": 1e-2}
    quality = fit_drafter(source, tmp_path / "out", text=ids, **settings).quality
    assert quality.relative_error < quality.unchanged_error / 2


# --- interruption ---


def test_an_interrupted_fit_goes_on_and_gives_the_same(
    tmp_path: Path, source: Path, ids: Path
) -> None:
    fit_drafter(source, tmp_path / "whole", text=ids, **FAST)
    run_window = states_module._run_window
    calls = []

    def run(*args: Any) -> Any:
        calls.append(0)
        if len(calls) > 7:
            raise KeyboardInterrupt
        return run_window(*args)

    with pytest.MonkeyPatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(states_module, "_run_window", run)
        fit_drafter(source, tmp_path / "out", text=ids, **FAST)
    partial = tmp_path / "out.partial"
    assert set(os.listdir(partial)) == {"calibration.json", "states.f16"}
    with (partial / "states.f16").open("ab") as file:
        file.write(b"part of a window")
    lines: list[str] = []
    fit_drafter(source, tmp_path / "out", text=ids, **FAST, progress=Progress(lines.append))
    assert "  going on after 7 of 20 windows" in lines
    name = "model-00002-of-00002.safetensors"
    assert (tmp_path / "out" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()
    assert not partial.exists()


def test_a_named_work_folder_serves_other_trainings(
    tmp_path: Path, source: Path, ids: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    work = tmp_path / "work"
    fit_drafter(source, tmp_path / "8", text=ids, work=work, **FAST)
    monkeypatch.delattr(states_module, "_run_window")  # no window is run again
    report = fit_drafter(source, tmp_path / "9", text=ids, work=work, **{**FAST, "inner": 9})
    assert report.drafter.inner_size == 9


@pytest.mark.parametrize("change", ["window", "text", "checkpoint"])
def test_work_of_another_text_or_checkpoint_is_refused(
    tmp_path: Path, source: Path, ids: Path, change: str
) -> None:
    work = tmp_path / "work"
    fit_drafter(source, tmp_path / "first", text=ids, work=work, **FAST)
    settings = FAST | ({"window": 15} if change == "window" else {})
    blamed = change_ground(change, source, ids)
    with pytest.raises(ExportError, match=rf"go on with the work[\s\S]*another {blamed}"):
        fit_drafter(source, tmp_path / "out", text=ids, work=work, **settings)
    assert not (tmp_path / "out").exists()


# --- what is refused ---


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"inner": 0}, "--inner 0"),
        ({"steps": 0}, "--steps 0"),
        ({"batch": -1}, "--batch -1"),
        ({"horizon": 0}, "--horizon 0"),
        ({"learning_rate": 0.0}, "--learning-rate 0.0"),
        ({"learning_rate": float("nan")}, "--learning-rate nan"),
        ({"seed": -1}, "--seed -1"),
        ({"window": 4}, r"windows of 4[\s\S]*5 or more"),
        ({"horizon": 16}, r"windows of 16[\s\S]*17 or more"),
        ({"window": 65}, r"windows of 65[\s\S]*2 to 64"),
        ({"tokens": 31}, r"fit a drafter to [\s\S]*31 tokens, too few"),
    ],
)
def test_settings_that_cannot_be_are_refused(
    tmp_path: Path, source: Path, ids: Path, settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(ExportError, match=message):
        fit_drafter(source, tmp_path / "out", text=ids, **FAST | settings)
    assert set(os.listdir(tmp_path)) == {"dense", "ids.npy"}


@pytest.mark.filterwarnings("error::RuntimeWarning")
@pytest.mark.parametrize(
    ("rate", "steps", "message"),
    [
        (1e9, 30, r"the loss is nan after \d+ steps\nfix: +choose a --learning-rate below 1e\+09"),
        (1e39, 1, r"numbers that it does not hold\nfix: +choose a lower --learning-rate"),
    ],
)
def test_a_training_that_diverges_is_told_without_warnings(
    tmp_path: Path, source: Path, ids: Path, rate: float, steps: int, message: str
) -> None:
    settings = FAST | {"learning_rate": rate, "steps": steps}
    with pytest.raises(ExportError, match=message):
        fit_drafter(source, tmp_path / "out", text=ids, **settings)
    assert not (tmp_path / "out").exists()


@pytest.mark.filterwarnings("error::RuntimeWarning")
def test_dynamics_that_are_too_large_to_be_measured_are_not_written(
    tmp_path: Path, source: Path, ids: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shapes = {"w_h": (16, 16), "w_e": (16, 16), "gate": (8, 16), "up": (8, 16), "down": (16, 8)}
    large = {name: np.full(shape, 3e38, np.float32) for name, shape in shapes.items()}
    name = "quatrain.exporter.drafting.fit.train_dynamics"
    monkeypatch.setattr(name, lambda *_: (large, 0.5))
    with pytest.raises(ExportError, match=r"not finite\nfix: +choose a --learning-rate below 0"):
        fit_drafter(source, tmp_path / "out", text=ids, **FAST)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("place", ["out", "dense/work"])
def test_work_in_the_output_or_the_source_is_refused_before_any_is_done(
    tmp_path: Path, source: Path, ids: Path, place: str
) -> None:
    with pytest.raises(ExportError, match="keep work in"):
        fit_drafter(source, tmp_path / "out", text=ids, work=tmp_path / place, **FAST)
    assert set(os.listdir(tmp_path)) == {"dense", "ids.npy"} and "work" not in os.listdir(source)


def test_a_drafter_exits_and_streams_are_refused(tmp_path: Path, source: Path, ids: Path) -> None:
    fit_drafter(source, tmp_path / "out", text=ids, **FAST)
    nvium = write_nvium(tmp_path / "nvium")
    tensors = random_tensors(DecoderSpec(BACKBONE, streams=Streams(2)))
    streams = write_checkpoint(tmp_path / "streams", tensors, scale_seq_times=1)
    for folder, message in {
        tmp_path / "out": "has low-level dynamics already",
        nvium: "an N-vium checkpoint",
        streams: "a Hidden Decoding checkpoint",
    }.items():
        with pytest.raises(ExportError, match=message):
            fit_drafter(folder, tmp_path / "again", text=ids, **FAST)


def test_an_output_that_is_there_or_inside_the_source_is_refused(
    tmp_path: Path, source: Path, ids: Path
) -> None:
    with pytest.raises(ExportError, match="something is there already"):
        fit_drafter(source, ids, text=ids, **FAST)
    with pytest.raises(ExportError, match="lies inside the source"):
        fit_drafter(source, source / "out", text=ids, **FAST)


def test_a_text_without_a_tokenizer_is_refused(tmp_path: Path, source: Path) -> None:
    (tmp_path / "text.txt").write_text("Some words.")
    with pytest.raises(ExportError, match=r"fit a drafter to the text[\s\S]*no tokenizer.json"):
        fit_drafter(source, tmp_path / "out", text=tmp_path / "text.txt", **FAST)


def test_weights_that_are_not_finite_are_told(tmp_path: Path, ids: Path) -> None:
    tensors = random_tensors(DENSE, np.float32)
    tensors["model.layers.0.self_attn.o_proj.weight"][0, 0] = np.nan
    source = write_checkpoint(tmp_path / "dense", tensors)
    with pytest.raises(ExportError, match="not finite"):
        fit_drafter(source, tmp_path / "out", text=ids, **FAST)
    assert not (tmp_path / "out").exists()
