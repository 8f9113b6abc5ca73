"""The command line: its help, its two kinds of output, and its exit statuses."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.exporter.quatrain_process import QUATRAIN, run_quatrain

from quatrain.exporter.cli import COMMANDS, main
from quatrain.exporter.commands.console import Console
from quatrain.runtime.errors import BundleError


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help_and_json(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main([command, "--help"])
    assert stop.value.code == 0
    assert "--json" in capsys.readouterr().out


def test_help_lists_every_command_and_imports_nothing_heavy() -> None:
    code = "from quatrain.exporter.cli import main; import sys\ntry: main(['--help'])\n"
    code += "except SystemExit: print(*sys.modules, file=sys.stderr)"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert all(command in run.stdout for command in COMMANDS)
    loaded = set(run.stderr.split())
    assert not loaded & {"numpy", "msgspec", "onnx", "onnxruntime", "onnxscript", "rich", "ctypes"}


def test_version_names_what_is_installed(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["--version"])
    assert stop.value.code == 0
    names = [line.split()[0] for line in capsys.readouterr().out.splitlines()]
    assert names[:2] == ["quatrain", "onnxruntime"]


@pytest.mark.parametrize(
    "words",
    [
        [],
        ["nothing"],
        ["export", "checkpoint"],
        ["export", "checkpoint", "-o", "bundle", "--dtyp", "float32"],
        ["export", "checkpoint", "-o", "bundle", "--dtype", "int4"],
        ["generate", "bundle", "--prompt-ids", "1,two"],
        ["generate", "bundle", "--routing", "random"],
        ["build", "bundle"],
    ],
    ids=" ".join,
)
def test_wrong_usage_exits_2(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main(words)
    assert stop.value.code == 2
    captured = capsys.readouterr()
    assert captured.out == "" and captured.err.startswith("usage: quatrain")


@pytest.mark.parametrize(
    ("words", "usage", "message", "fix"),
    [
        (
            ["export", "c", "-o", "b", "--targets", "a6000"],
            "usage: quatrain export [-h] -o BUNDLE",
            "quatrain export: error: unrecognized arguments: --targets a6000",
            "did you mean --target? `quatrain export --help`",
        ),
        (
            ["export", "c", "--outptu=b"],
            "usage: quatrain export [-h] -o BUNDLE",
            "required: -o/--output",
            "did you mean --output? `quatrain export --help`",
        ),
        (
            ["plan", "one", "two"],
            "usage: quatrain plan",
            "unrecognized arguments: two",
            "fix:   `quatrain plan --help`",
        ),
        (["--json", "plan", "x"], "usage: quatrain [-h]", "--json", "behind its name"),
        (["exprot", "c"], "usage: quatrain [-h]", "exprot", "did you mean export?"),
    ],
    ids=" ".join,
)
def test_wrong_usage_is_told_with_the_usage_of_the_command(
    words: list[str], usage: str, message: str, fix: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main(words)
    told = capsys.readouterr().err
    assert told.startswith(usage) and message in told and fix in told.splitlines()[-1]


def test_wrong_usage_as_json_is_one_document(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["plan", "my model", "--drft", "3", "--json"])
    assert stop.value.code == 2
    captured = capsys.readouterr()
    assert json.loads(captured.out) == {
        "error": {
            "asked": "quatrain plan 'my model' --drft 3 --json",
            "found": "unrecognized arguments: --drft 3",
            "fix": "did you mean --draft? `quatrain plan --help` lists what there is",
        }
    }
    assert captured.err.startswith("usage: quatrain plan")


def test_a_user_error_has_three_parts_and_no_trace(tmp_path: Path) -> None:
    run = run_quatrain("inspect", tmp_path / "nothing")
    assert run.returncode == 1
    assert run.stdout == ""
    assert [line.split(":")[0] for line in run.stderr.splitlines()] == ["asked", "found", "fix"]


def test_a_user_error_as_json_is_one_document(tmp_path: Path) -> None:
    run = run_quatrain("inspect", tmp_path / "nothing", "--json")
    assert run.returncode == 1
    error = json.loads(run.stdout)["error"]
    assert set(error) == {"asked", "found", "fix"} and "nothing" in error["asked"]
    assert "Traceback" not in run.stderr


def test_a_file_name_that_is_no_text_makes_an_error_like_any_other(tmp_path: Path) -> None:
    run = run_quatrain("inspect", os.fsdecode(os.fsencode(tmp_path) + b"/\xff"), "--json")
    assert run.returncode == 1
    assert "\udcff" in json.loads(run.stdout)["error"]["asked"]


def replace_command(monkeypatch: pytest.MonkeyPatch, body: Callable[[Console], int]) -> None:
    """Make `quatrain doctor` do something else."""
    from quatrain.exporter.commands import doctor

    monkeypatch.setattr(doctor, "run", lambda args, console: body(console))


def fail_with(error: BaseException) -> Callable[[Console], int]:
    def body(console: Console) -> int:
        raise error

    return body


def test_ctrl_c_exits_130_with_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    replace_command(monkeypatch, fail_with(KeyboardInterrupt()))
    assert main(["doctor", "--json"]) == 130
    captured = capsys.readouterr()
    assert captured.out == "" and captured.err == "quatrain: interrupted\n"


def test_a_missing_package_names_the_extra_that_has_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    replace_command(monkeypatch, fail_with(ModuleNotFoundError("no", name="onnxscript.nn")))
    assert main(["doctor"]) == 1
    assert "pip install 'quatrain[export]'" in capsys.readouterr().err


def test_a_full_disk_is_a_user_error(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    replace_command(monkeypatch, fail_with(OSError(28, "No space left on device")))
    assert main(["doctor"]) == 1
    assert "No space left on device" in capsys.readouterr().err


def test_an_internal_error_keeps_its_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    replace_command(monkeypatch, fail_with(ZeroDivisionError()))
    with pytest.raises(ZeroDivisionError):
        main(["doctor"])


def test_a_user_error_in_a_command_exits_1(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    replace_command(monkeypatch, fail_with(BundleError("a", "b", "c")))
    assert main(["doctor", "--json"]) == 1
    captured = capsys.readouterr()
    assert json.loads(captured.out) == {"error": {"asked": "a", "found": "b", "fix": "c"}}
    assert captured.err == "asked: a\nfound: b\nfix:   c\n"


def test_a_reader_that_goes_away_is_no_error_of_ours(nvium_checkpoint: Path) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    run = subprocess.run(
        [*QUATRAIN, "inspect", str(nvium_checkpoint)],
        stdout=writing,
        stderr=subprocess.PIPE,
        text=True,
        timeout=60,
    )
    os.close(writing)
    assert run.returncode == 128 + signal.SIGPIPE
    assert run.stderr == ""


@pytest.mark.parametrize("redirection", [">&-", ">/dev/full", "2>&-", "2>/dev/full", ">&- 2>&-"])
def test_streams_that_cannot_be_written(
    redirection: str, nvium_checkpoint: Path, tmp_path: Path
) -> None:
    words = ["bash", "-c", f'"$@" {redirection}', "-", *QUATRAIN]
    words += ["export", str(nvium_checkpoint), "-o", str(tmp_path / "bundle"), "--json"]
    run = subprocess.run(words, capture_output=True, text=True, timeout=60)
    assert "Traceback" not in run.stderr
    assert run.returncode == (1 if redirection == ">/dev/full" else 0)
    if ">&-" not in redirection.split() and redirection != ">/dev/full":
        assert json.loads(run.stdout)["weights"] in ("link", "copy")


def run_on_a_device(*words: str | Path) -> subprocess.CompletedProcess[str]:
    """Run quatrain as installed without extras: none of their packages can be imported."""
    absent = ("onnx", "onnx_ir", "onnxscript", "yaml", "rich", "ml_dtypes", "tensorrt_rtx", "torch")
    code = f"import sys; sys.modules.update(dict.fromkeys({absent}))\n"
    code += "from quatrain.exporter.cli import main; sys.exit(main())"
    return subprocess.run(
        [sys.executable, "-c", code, *map(str, words)], capture_output=True, text=True, timeout=60
    )


def test_a_device_needs_no_extras(nvium_bundle: Path, nvium_checkpoint: Path) -> None:
    generate = ["generate", nvium_bundle, "--prompt-ids", "1,2,3", "--max-tokens", "2"]
    for words in (generate, ["inspect", nvium_bundle], ["doctor", nvium_bundle]):
        run = run_on_a_device(*words)
        assert run.returncode == 0, run.stderr
    run = run_on_a_device("inspect", nvium_checkpoint)
    assert run.returncode == 1
    assert "pip install 'quatrain[export]'" in run.stderr
