"""The README: what it tells people to type is something `quatrain` and make understand."""

import re
import shlex
from pathlib import Path

from quatrain.exporter.cli import make_parser

ROOT = Path(__file__).resolve().parents[1]


def read_shell_lines() -> list[str]:
    """Lines of the README's shell blocks, continued lines joined, prompts and comments gone."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    blocks = re.findall(r"^```(?:bash|sh|shell|console)\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    lines = "\n".join(blocks).replace("\\\n", " ").splitlines()
    return [line.strip().removeprefix("$ ") for line in lines]


def list_commands(program: str) -> list[list[str]]:
    """The word lists of the README's calls of a program, pipes and redirections cut off."""
    calls = [shlex.split(line, comments=True) for line in read_shell_lines()]
    cut = [words[: next((i for i, w in enumerate(words) if w in "|>&&;"), None)] for words in calls]
    return [words[1:] for words in cut if words and words[0] == program]


def test_every_quatrain_command_parses() -> None:
    commands = list_commands("quatrain")
    assert commands, "the README shows no quatrain command"
    for words in commands:
        try:
            make_parser(words).parse_args(words)
        except SystemExit as stop:
            assert stop.code == 0, f"quatrain {shlex.join(words)}"


def test_every_make_target_exists() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"^([a-z-]+):", makefile, re.MULTILINE))
    commands = list_commands("make")
    assert commands, "the README shows no make command"
    for words in commands:
        assert {word for word in words if "=" not in word} <= targets


def test_links_lead_somewhere() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    links = re.findall(r"\]\(([^)#\s]+)[^)]*\)", text)
    missing = [link for link in links if "://" not in link and not (ROOT / link).exists()]
    assert not missing
