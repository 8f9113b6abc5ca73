"""Paths of flags: an empty one is refused, and does not mean the current folder."""

import argparse
from pathlib import Path

import pytest

from quatrain.exporter.cli import COMMANDS, main, make_parser
from quatrain.exporter.commands.path_flag import read_path


def list_actions(command: str) -> list[argparse.Action]:
    parser = make_parser([command])
    [group] = [a for a in parser._actions if isinstance(a, argparse._SubParsersAction)]
    return list(group.choices[command]._actions)


@pytest.mark.parametrize("command", COMMANDS)
def test_no_flag_takes_an_empty_path(command: str) -> None:
    paths = [action for action in list_actions(command) if action.type in (Path, read_path)]
    assert [action.dest for action in paths if action.type is Path] == []
    assert paths or command == "doctor"


def test_a_path_is_as_it_was_given() -> None:
    assert read_path("a b/c") == Path("a b/c") and read_path(".") == Path()


@pytest.mark.parametrize(
    "words",
    [
        ["generate", "bundle", "--prompt", "x", "--session-cache", ""],
        ["bench", "bundle", "--session-cache="],
        ["generate", "", "--prompt", "x"],
        ["generate", "bundle", "--prompt-file", ""],
        ["export", "checkpoint", "-o", ""],
        ["export", "", "-o", "bundle"],
    ],
    ids=" ".join,
)
def test_an_empty_path_is_refused(
    words: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as stop:
        main(words)
    assert stop.value.code == 2 and "an empty path" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
