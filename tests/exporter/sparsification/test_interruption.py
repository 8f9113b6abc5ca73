"""An interrupted sparsification goes on from the work it left, and from no other."""

import os
from pathlib import Path
from typing import Any

import pytest
from tests.exporter.resumed_work import change_ground, save_every_step
from tests.exporter.sparsification.banks import BANKS, PREDICTOR

from quatrain.exporter import open_checkpoint, sparsify_checkpoint
from quatrain.exporter.errors import ExportError
from quatrain.exporter.progress import Progress
from quatrain.exporter.sparsification import calibration as calibration_module


def interrupt(monkeypatch: pytest.MonkeyPatch, at: int) -> None:
    """Ctrl-C in the middle of a window, whose rows have been added for some layers by then."""
    save_every_step(monkeypatch)
    run_probe = calibration_module.run_probe
    calls = []

    def run(*args: Any) -> Any:
        calls.append(0)
        yield from run_probe(*args)
        if len(calls) == at:
            raise KeyboardInterrupt

    monkeypatch.setattr(calibration_module, "run_probe", run)


def test_an_interrupted_calibration_goes_on_and_gives_the_same(
    tmp_path: Path, source: Path, ids: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flags: dict[str, Any] = {"text": ids, "window": 16, "rank": 4, **BANKS}
    sparsify_checkpoint(source, tmp_path / "whole", **flags)
    with monkeypatch.context() as patch:
        interrupt(patch, 8)
        with pytest.raises(KeyboardInterrupt):
            sparsify_checkpoint(source, tmp_path / "out", **flags)
    assert set(os.listdir(tmp_path)) == {"dense", "ids.npy", "whole", "out.partial"}
    assert set(os.listdir(tmp_path / "out.partial")) == {"calibration.json", "moments.npz"}
    lines: list[str] = []
    sparsify_checkpoint(source, tmp_path / "out", **flags, progress=Progress(lines.append))
    assert "  going on after 7 of 18 windows" in lines
    file = "model-00002-of-00002.safetensors"
    assert (tmp_path / "out" / file).read_bytes() == (tmp_path / "whole" / file).read_bytes()
    assert not (tmp_path / "out.partial").exists()


def test_a_named_work_folder_serves_another_rank(
    tmp_path: Path, source: Path, ids: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flags: dict[str, Any] = {"text": ids, "window": 16, "work": tmp_path / "work", **BANKS}
    sparsify_checkpoint(source, tmp_path / "4", rank=4, **flags)
    interrupt(monkeypatch, 1)  # no window is run again
    sparsify_checkpoint(source, tmp_path / "8", rank=8, **flags)
    first = open_checkpoint(tmp_path / "8").tensors[PREDICTOR.format(0, 0)]
    assert first.shape == (8, 16)


@pytest.mark.parametrize("change", ["window", "tokens", "text", "checkpoint"])
def test_work_of_other_settings_is_refused(
    tmp_path: Path, source: Path, ids: Path, change: str
) -> None:
    flags: dict[str, Any] = {"text": ids, "window": 16, "work": tmp_path / "work", "rank": 4}
    sparsify_checkpoint(source, tmp_path / "first", **flags, **BANKS)
    flags |= {"window": {"window": 15}, "tokens": {"tokens": 200}}.get(change, {})
    blamed = change_ground(change, source, ids)
    with pytest.raises(ExportError, match=rf"go on with the work[\s\S]*another {blamed}"):
        sparsify_checkpoint(source, tmp_path / "out", **flags, **BANKS)
    assert not (tmp_path / "out").exists()


def test_a_folder_of_something_else_is_never_work(tmp_path: Path, source: Path, ids: Path) -> None:
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "thesis.txt").write_text("1")
    with pytest.raises(ExportError, match="holds something else"):
        sparsify_checkpoint(
            source, tmp_path / "out", text=ids, window=16, work=precious, rank=4, **BANKS
        )
    assert os.listdir(precious) == ["thesis.txt"]
