"""Settings of what an export does not have are refused, also where they are the defaults."""

from pathlib import Path
from typing import Any

import pytest

from quatrain.exporter.capacity.model import open_planned
from quatrain.exporter.cli import main
from quatrain.exporter.errors import ExportError
from quatrain.exporter.export import export_checkpoint, plan_export
from quatrain.runtime.manifest import Limits, load_manifest

SAMPLES = Path(__file__).parents[2] / "samples" / "checkpoints"
DEFAULTS: dict[str, Any] = {"max_deferred": 16, "max_draft": 8, "group_size": 32}
NO_DRAFTER = r"has no drafter: no lower_dynamics.*\nfix: +leave --max-draft out, or"


@pytest.mark.parametrize(
    ("sample", "setting", "message"),
    [
        ("dense", "max_deferred", r"this model \(dense\) has no exits"),
        ("dense", "max_draft", NO_DRAFTER),
        ("nvium", "max_draft", NO_DRAFTER),
        ("hilp", "max_draft", r"the drafter is left out\nfix: +add --drafter"),
        ("nextlat", "max_draft", r"the drafter is left out\nfix: +add --drafter"),
        ("dense", "group_size", "weights are not quantized"),
    ],
)
def test_they_are_refused_wherever_they_are_given(
    sample: str, setting: str, message: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    checkpoint, given = SAMPLES / f"topics-{sample}", {setting: DEFAULTS[setting]}
    with pytest.raises(ExportError, match=message):
        export_checkpoint(checkpoint, tmp_path / "b", **given)
    with pytest.raises(ExportError, match=message):
        plan_export(checkpoint, **given)
    with pytest.raises(ExportError, match=message):
        open_planned(checkpoint, **given)
    flag = f"--{setting.replace('_', '-')}"
    words = [str(checkpoint), flag, str(DEFAULTS[setting])]
    for command in (["plan"], ["export", "-o", str(tmp_path / "b")]):
        assert main([*command, *words]) == 1
        assert capfd.readouterr().err.startswith(f"asked: {flag} {DEFAULTS[setting]}\n")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("sample", "given"),
    [
        ("nvium", {"max_deferred": 16}),
        ("hilp", {"drafter": True, "max_draft": 8}),
        ("dense", {"quantize": "int4", "group_size": 32}),
    ],
)
def test_where_they_mean_something_the_defaults_are_these(
    sample: str, given: dict[str, Any]
) -> None:
    checkpoint = SAMPLES / f"topics-{sample}"
    kept = {name: value for name, value in given.items() if name not in DEFAULTS}
    assert plan_export(checkpoint, **given) == plan_export(checkpoint, **kept)


def test_modes_of_plugins_are_of_engines(tmp_path: Path) -> None:
    for modes in (["on"], ["auto"]):
        with pytest.raises(ExportError, match="no target was given"):
            export_checkpoint(SAMPLES / "topics-dense", tmp_path / "b", plugins=modes)
    assert list(tmp_path.iterdir()) == []


def test_a_manifest_has_the_limits_it_always_had(tmp_path: Path) -> None:
    export_checkpoint(SAMPLES / "topics-dense", tmp_path / "b", self_test=False, verify=False)
    limits = Limits(max_seq_len=1024, max_batch=4, prefill_chunk=512, max_deferred=16, max_draft=8)
    assert load_manifest(tmp_path / "b").limits == limits
