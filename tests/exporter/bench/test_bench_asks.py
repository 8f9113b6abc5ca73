"""`quatrain bench`: what a step is, what the report says of how it measured, and what no bundle can
use is refused."""

import json
from pathlib import Path

import pytest

from quatrain.exporter.bench import BenchSetting, bench_bundles
from quatrain.exporter.bench.runner import Runner
from quatrain.exporter.bench.setting import Case
from quatrain.exporter.cli import main
from quatrain.exporter.export import export_checkpoint
from quatrain.exporter.passage import read_passage
from quatrain.runtime.errors import RequestError

SAMPLES = Path(__file__).parents[3] / "samples" / "checkpoints"
SHORT = BenchSetting((8,), new_tokens=4, repeats=1, warm_ups=0, threads=1)
WORDS = ["--prompt-tokens", "8", "--new-tokens", "4", "--repeats", "1", "--warm-ups", "0"]


@pytest.fixture(scope="module")
def bundles(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("asks")
    for name, drafter in (("dense", False), ("nvium", False), ("hilp", True)):
        source = SAMPLES / f"topics-{name}"
        export_checkpoint(
            source,
            folder / name,
            self_test=False,
            verify=False,
            max_seq_len=128,
            drafter=drafter,
        )
    bare = folder / "checkpoint"
    bare.mkdir()
    for path in (SAMPLES / "topics-dense").iterdir():
        if path.suffix == ".safetensors" or path.name == "config.json":
            (bare / path.name).write_bytes(path.read_bytes())
    export_checkpoint(bare, folder / "bare", self_test=False, verify=False)
    return folder


@pytest.mark.parametrize("batch", [1, 3])
def test_a_round_of_drafts_is_one_step(bundles: Path, batch: int) -> None:
    runner = Runner(bundles / "hilp", BenchSetting(draft=4, batch=batch, threads=1))

    timing = runner.time(read_passage(), Case(prompt_tokens=32, new_tokens=48, batch=batch))

    assert timing.accepted_per_step is not None and timing.accepted_per_step > 1.2
    if batch == 1:  # else rows that are through take no part in the last rounds
        assert len(timing.step_seconds) * timing.accepted_per_step == pytest.approx(47)
    assert 47 / 5 <= len(timing.step_seconds) < 47


@pytest.mark.parametrize("name", ["dense", "nvium"])
def test_without_drafts_every_token_is_a_step(bundles: Path, name: str) -> None:
    runner = Runner(bundles / name, BenchSetting(threads=1))

    timing = runner.time(read_passage(), Case(prompt_tokens=8, new_tokens=24, batch=2))

    assert len(timing.step_seconds) == 23


def test_the_report_says_how_tokens_and_exits_were_chosen(
    bundles: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    paths = [str(bundles / name) for name in ("dense", "nvium", "hilp")]

    assert main(["bench", *paths, *WORDS, "--draft", "2", "--json"]) == 0

    report = json.loads(capfd.readouterr().out)
    assert report["decoding"] == "greedy" and report["session_cache"] is None
    assert [run["routing"] for run in report["runs"]] == [None, "sample", None]
    assert [run["draft"] for run in report["runs"]] == [None, None, 2]

    assert main(["bench", *paths[1:], *WORDS, "--session-cache", str(tmp_path / "kept")]) == 0
    shown = capfd.readouterr().out
    assert "greedy decoding, exits drawn (routing sample)" in shown
    assert f"sessions are kept in {tmp_path / 'kept'}" in shown and "(draft auto)" in shown
    assert main(["bench", paths[0], *WORDS, "--markdown"]) == 0
    assert "- greedy decoding\n" in capfd.readouterr().out
    with pytest.raises(SystemExit):
        main(["bench", "--help"])
    assert "greedy" in capfd.readouterr().out


def test_a_cache_that_was_used_is_in_the_report(bundles: Path, tmp_path: Path) -> None:
    setting = BenchSetting((8,), new_tokens=2, repeats=1, warm_ups=0, session_cache=tmp_path)

    assert bench_bundles([bundles / "dense"], setting).session_cache == str(tmp_path)


def test_a_number_to_draft_without_any_drafter_is_refused(bundles: Path) -> None:
    paths = [bundles / "dense", bundles / "nvium"]
    for draft in (4, -1):
        setting = BenchSetting((8,), new_tokens=4, repeats=1, warm_ups=0, draft=draft)
        with pytest.raises(RequestError, match="no drafter") as caught:
            bench_bundles(paths, setting)
        assert all(str(path) in caught.value.found for path in paths)


def test_bundles_without_a_drafter_are_named_where_others_draft(bundles: Path) -> None:
    said: list[str] = []
    setting = BenchSetting((8,), new_tokens=4, repeats=1, warm_ups=0, draft=4)

    bench_bundles([bundles / "dense", bundles / "hilp"], setting, say=said.append)

    assert f"{bundles / 'dense'} has no drafter, and runs without drafts (--draft 4)" in said
    assert not any(line.startswith(f"{bundles / 'hilp'} has no") for line in said)


def test_a_text_that_nothing_tokenizes_is_refused(bundles: Path, tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_text("some words")
    said: list[str] = []

    with pytest.raises(RequestError, match="no tokenizer in"):
        bench_bundles([bundles / "bare"], SHORT, text=text)
    bench_bundles([bundles / "bare", bundles / "dense"], SHORT, text=text, say=said.append)

    assert (
        f"{bundles / 'bare'} has no tokenizer: its prompts are all ids in turn, and no text" in said
    )


def test_markdown_and_json_at_once_are_refused(
    bundles: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", str(bundles / "dense"), *WORDS, "--markdown", "--json"]) == 1
    assert "--markdown --json" in json.loads(capfd.readouterr().out)["error"]["asked"]
