"""Where output goes: with --json one document on stdout and all else on stderr."""

import ctypes
import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from quatrain.exporter.commands.console import Console


@dataclass(frozen=True, slots=True)
class Result:
    path: Path
    values: tuple[int, ...]
    score: float


def test_with_json_only_the_document_reaches_stdout(capfd: pytest.CaptureFixture[str]) -> None:
    console = Console(is_json=True)
    with console.recording():
        print("from Python")
        os.write(1, b"from a library\n")
        ctypes.CDLL(None).puts(b"from C's buffer")
        console.show("for people")
        console.say("progress")
        console.set_document({"result": 1})
    captured = capfd.readouterr()
    assert json.loads(captured.out) == {"result": 1}
    for text in ("from Python", "from a library", "from C's buffer", "progress"):
        assert text in captured.err
    assert "for people" not in captured.out + captured.err


def test_without_json_the_result_is_text(capsys: pytest.CaptureFixture[str]) -> None:
    console = Console(is_json=False)
    with console.recording():
        console.set_document({"result": 1})
        console.show("for ", end="")
        console.show("people")
    assert capsys.readouterr() == ("for people\n", "")


def test_an_error_writes_no_document(capfd: pytest.CaptureFixture[str]) -> None:
    console = Console(is_json=True)
    with pytest.raises(KeyError), console.recording():
        console.set_document(1)
        raise KeyError
    assert capfd.readouterr().out == ""
    print("stdout is back")
    assert capfd.readouterr().out == "stdout is back\n"


def test_documents_hold_dataclasses_paths_and_numbers(capfd: pytest.CaptureFixture[str]) -> None:
    console = Console(is_json=True)
    with console.recording():
        result = Result(Path("folder/ü"), (1, 2), float("nan"))
        console.set_document({"result": result, "array": np.arange(2), "scalar": np.float32(0.5)})
    assert json.loads(capfd.readouterr().out) == {
        "result": {"path": "folder/ü", "values": [1, 2], "score": None},
        "array": [0, 1],
        "scalar": 0.5,
    }


def test_text_a_terminal_cannot_show_is_escaped() -> None:
    code = "from quatrain.exporter.commands.console import Console; "
    code += "c = Console(is_json=False); c.show('\\u00fc \\u4e2d'); c.say('\\udcff')"
    env = os.environ | {"PYTHONIOENCODING": "latin-1", "PYTHONUTF8": "0"}
    run = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, check=True)
    assert run.stdout == b"\xfc \\u4e2d\n"
    assert run.stderr == b"\\udcff\n"
