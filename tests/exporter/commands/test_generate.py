"""`quatrain generate`: results, streams, and what it refuses."""

import json
from pathlib import Path

import pytest

from quatrain.exporter.cli import main
from quatrain.exporter.export import export_checkpoint
from quatrain.runtime.manifest import load_manifest


def test_generate_prints_one_document_of_results_and_stats(
    nvium_bundle: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["generate", str(nvium_bundle), "--prompt-ids", "1,2,3", "--prompt-ids", "4,5"]
    assert main([*words, "--temperature", "0", "--max-tokens", "6", "--json"]) == 0
    captured = capsys.readouterr()
    document = json.loads(captured.out)
    assert set(document) == {"results", "stats"}
    assert [result["prompt_tokens"] for result in document["results"]] == [3, 2]
    for result in document["results"]:
        keys = {"text", "token_ids", "finish_reason", "prompt_tokens", "output_tokens", "exits"}
        assert keys <= set(result)
        assert len(result["exits"]) == len(result["token_ids"]) == result["output_tokens"]
    assert document["stats"]["tokens_per_second"] > 0
    assert "routing argmax" in captured.err


def test_generate_streams_one_prompt_and_tells_stats(
    nvium_bundle: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["generate", str(nvium_bundle), "--prompt-ids", "1,2,3", "--temperature", "0"]
    assert main([*words, "--max-tokens", "6", "--json"]) == 0
    ids = json.loads(capsys.readouterr().out)["results"][0]["token_ids"]
    assert main([*words, "--max-tokens", "6", "--stats"]) == 0
    captured = capsys.readouterr()
    assert [int(token) for token in captured.out.split()] == ids  # it has no tokenizer
    assert "tokens/s" in captured.err and "layers deep" in captured.err


@pytest.mark.parametrize(
    ("flags", "found"),
    [
        ([], "none was given"),
        (["--prompt", "text"], "no tokenizer"),
        (["--prompt-ids", "1,512"], "from 0 to 511"),
        (["--prompt-ids", ""], "no token to begin with"),
        (["--prompt-file", "missing.txt"], "No such file"),
        (["--prompt-ids", "1", "--temperature", "nan"], "finite number"),
        (["--prompt-ids", "1", "--routing", "4"], "exits 0 to 3"),
        (["--prompt-ids", "1", "--threads", "0"], "threads"),
        (["--prompt-ids", "1", "--backend", "tensorrt"], "engine"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_generate_refuses_what_it_cannot_do(
    flags: list[str], found: str, nvium_bundle: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["generate", str(nvium_bundle), *flags]) == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    assert found in captured.err and captured.err.count("asked: ") == 1


def test_a_prompt_file_must_be_utf8(
    nvium_bundle: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "prompt.txt"
    path.write_bytes(b"caf\xe9")
    assert main(["generate", str(nvium_bundle), "--prompt-file", str(path)]) == 1
    assert "not UTF-8" in capsys.readouterr().err


@pytest.mark.parametrize("ids", ["5,,6", "5,6,", ",5", ",", "5 6"])
def test_ids_with_a_gap_are_refused(
    ids: str, nvium_bundle: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["generate", str(nvium_bundle), "--prompt-ids", ids])
    assert stop.value.code == 2 and f"'{ids}' is not token ids" in capsys.readouterr().err


@pytest.mark.parametrize("num_prompts", [1, 2])
def test_the_end_of_a_full_bundle_is_told(
    num_prompts: int, nvium_bundle: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    limit = load_manifest(nvium_bundle).limits.max_seq_len
    words = ["generate", str(nvium_bundle), "--temperature", "0", "--ignore-eos"]
    words += ["--prompt-ids", ",".join(["1"] * (limit - 3))] * num_prompts
    assert main([*words, "--max-tokens", "3"]) == 0
    assert "short of" not in capsys.readouterr().err
    assert main([*words, "--max-tokens", "4"]) == 0
    told = f"ended after 3 tokens, short of max_tokens 4: this bundle holds {limit}, prompt and"
    assert capsys.readouterr().err.count(told) == num_prompts
    assert main([*words, "--max-tokens", "4", "--json"]) == 0
    captured = capsys.readouterr()
    assert captured.err.count(told) == num_prompts
    [result, *_] = json.loads(captured.out)["results"]
    assert (result["finish_reason"], result["output_tokens"]) == ("length", 3)


@pytest.mark.parametrize(
    ("flags", "is_off"),
    [
        (["--seed", "1"], True),
        (["--seed", "1", "--temperature", "0"], False),
        (["--seed", "1", "--draft", "2"], False),
        ([], False),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_seed_keeps_drafts_off_where_tokens_are_drawn(
    flags: list[str],
    is_off: bool,
    tmp_path_factory: pytest.TempPathFactory,
    root: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    bundle = tmp_path_factory.getbasetemp() / "hilp-of-generate"
    if not bundle.exists():
        export_checkpoint(
            root / "samples" / "checkpoints" / "topics-hilp",
            bundle,
            drafter=True,
            verify=False,
            self_test=False,
        )
    capsys.readouterr()
    words = ["generate", str(bundle), "--prompt-ids", "5,6", "--max-tokens", "9", "--stats"]
    assert main([*words, "--ignore-eos", *flags]) == 0
    assert ("100.0 % of these tokens because of the seed" in capsys.readouterr().err) == is_off
