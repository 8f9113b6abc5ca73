"""Training: it learns what can be learnt, and goes on where it was interrupted."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.exporter.resumed_work import save_every_step

from quatrain.exporter.drafting import training as training_module
from quatrain.exporter.drafting.quality import measure_quality
from quatrain.exporter.drafting.settings import TrainingSettings
from quatrain.exporter.drafting.states import StateRuns
from quatrain.exporter.drafting.training import train_dynamics
from quatrain.exporter.drafting.work_folder import DraftingFolder
from quatrain.exporter.errors import ExportError
from quatrain.exporter.progress import Progress

HIDDEN, VOCAB = 4, 12
HEAD = np.random.default_rng(5).standard_normal((40, HIDDEN)).astype(np.float16)
SETTINGS = TrainingSettings(inner=64, steps=1000, batch=256, horizon=2, learning_rate=3e-2, seed=0)


def make_runs(seed: int, num_windows: int) -> StateRuns:
    """Linear dynamics, h' = Q h with a rotation Q, of states of another size than 1."""
    rng = np.random.default_rng(9)
    table = rng.standard_normal((VOCAB, HIDDEN)).astype(np.float32)
    turn = np.linalg.qr(rng.standard_normal((HIDDEN, HIDDEN)))[0]
    rng = np.random.default_rng(seed)
    token_ids = rng.integers(0, VOCAB, (num_windows, 24))
    states = [rng.standard_normal((num_windows, HIDDEN))]
    for _ in range(23):
        states.append(states[-1] @ turn.T)
    return StateRuns(np.stack(states, axis=1).astype(np.float32) * 20, token_ids, table)


@pytest.fixture
def work(tmp_path: Path) -> DraftingFolder:
    return DraftingFolder(tmp_path / "work", {"text": "1"})


def test_linear_dynamics_are_learnt_and_drafts_accepted(work: DraftingFolder) -> None:
    runs, held_out = make_runs(0, 200), make_runs(1, 10)
    lines: list[str] = []
    untrained, first = train_dynamics(runs, HEAD, replace(SETTINGS, steps=1), work, Progress())
    trained, last = train_dynamics(runs, HEAD, SETTINGS, work, Progress(lines.append))
    assert last < first / 10
    before, after = (measure_quality(w, held_out, HEAD, 4) for w in (untrained, trained))
    assert after.relative_error < 0.3 < 1 < before.relative_error
    assert after.tokens_per_step > 2.4 > 1.6 > before.tokens_per_step
    assert any("1000 steps of 256 roll-outs of 2" in line for line in lines)


def interrupt(monkeypatch: pytest.MonkeyPatch, at: int) -> None:
    save_every_step(monkeypatch)
    take_loss = training_module.take_loss
    calls = []

    def take(*args: Any) -> Any:
        calls.append(0)
        if len(calls) > at:
            raise KeyboardInterrupt
        return take_loss(*args)

    monkeypatch.setattr(training_module, "take_loss", take)


def test_a_resumed_training_equals_an_uninterrupted_one(
    tmp_path: Path, work: DraftingFolder
) -> None:
    runs, settings = make_runs(0, 20), replace(SETTINGS, steps=30)
    whole, whole_loss = train_dynamics(runs, HEAD, settings, work, Progress())
    other = DraftingFolder(tmp_path / "other", {"text": "1"})
    with pytest.MonkeyPatch.context() as patch, pytest.raises(KeyboardInterrupt):
        interrupt(patch, 13)
        train_dynamics(runs, HEAD, settings, other, Progress())
    saved = other.load_training()
    assert saved is not None and saved.step == 13
    lines: list[str] = []
    resumed, loss = train_dynamics(runs, HEAD, settings, other, Progress(lines.append))
    assert "  going on after 13 of 30 steps" in lines
    assert loss == whole_loss
    assert resumed.keys() == whole.keys()
    for name, weight in whole.items():
        assert np.array_equal(resumed[name], weight), name


def test_other_settings_are_refused_until_the_training_is_finished(
    work: DraftingFolder,
) -> None:
    runs, settings = make_runs(0, 20), replace(SETTINGS, steps=10)
    with pytest.MonkeyPatch.context() as patch, pytest.raises(KeyboardInterrupt):
        interrupt(patch, 4)
        train_dynamics(runs, HEAD, settings, work, Progress())
    changed = replace(settings, inner=16, learning_rate=1e-2)
    message = r"go on with the work[\s\S]*another --inner \(64\) and another --learning-rate"
    with pytest.raises(ExportError, match=message):
        train_dynamics(runs, HEAD, changed, work, Progress())
    train_dynamics(runs, HEAD, settings, work, Progress())
    weights, _ = train_dynamics(runs, HEAD, changed, work, Progress())
    assert weights["gate"].shape == (16, HIDDEN)


def test_a_finished_training_is_not_run_again(
    work: DraftingFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs, settings = make_runs(0, 20), replace(SETTINGS, steps=10)
    first = train_dynamics(runs, HEAD, settings, work, Progress())
    interrupt(monkeypatch, 0)
    again = train_dynamics(runs, HEAD, settings, work, Progress())
    assert again[1] == first[1] and np.array_equal(again[0]["up"], first[0]["up"])


def test_a_loss_that_is_not_finite_is_told(work: DraftingFolder) -> None:
    runs = make_runs(0, 20)
    with (
        np.errstate(all="ignore"),
        pytest.raises(ExportError, match=r"the loss is nan|the loss is inf"),
    ):
        train_dynamics(
            runs, HEAD, replace(SETTINGS, steps=50, learning_rate=1e20), work, Progress()
        )


@pytest.mark.parametrize(
    "changes",
    [
        {"settings": np.array("{")},
        {"settings": np.array("[1]")},
        {"settings": np.array("{}")},
        {"step": np.array("x")},
        {"step": np.array(-1)},
        {"loss": None},
        {"loss": np.zeros(3)},
        {"loss": np.array("x")},
        {"w_h": None},
        {"w_h": np.zeros((3, 3), np.float32)},
        {"up": np.array(["x"])},
        {"second.down": None},
        {"third.down": np.zeros((HIDDEN, 8), np.float32)},
    ],
)
def test_a_saved_training_that_is_none_is_refused(
    work: DraftingFolder, changes: dict[str, Any]
) -> None:
    runs, settings = make_runs(0, 4), replace(SETTINGS, inner=8, steps=2)
    train_dynamics(runs, HEAD, settings, work, Progress())
    arrays = (work.load_arrays("training.npz") or {}) | changes
    work.save_arrays("training.npz", {n: array for n, array in arrays.items() if array is not None})
    with pytest.raises(ExportError, match=r"training\.npz holds something else"):
        train_dynamics(runs, HEAD, settings, work, Progress())
