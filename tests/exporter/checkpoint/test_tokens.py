"""Special tokens and tokenizer files."""

from pathlib import Path
from typing import Any

import pytest
from tests.exporter.checkpoint.folders import write_dense, write_json

from quatrain.exporter.checkpoint import open_checkpoint
from quatrain.exporter.checkpoint.fields import Fields
from quatrain.exporter.checkpoint.tokens import TokenSettings, read_token_settings
from quatrain.exporter.errors import CheckpointError


def read(folder: Path, **config: object) -> TokenSettings:
    return read_token_settings(folder, Fields({"model_type": "llama", **config}, "config.json"))


@pytest.mark.parametrize(
    ("config", "generation", "eos"),
    [
        (2, 2, (2,)),
        (2, [3, 2, 4], (2, 3, 4)),
        ([5, 6], None, (5, 6)),
        (None, 7, (7,)),
        (None, None, ()),
    ],
)
def test_eos_of_both_files(tmp_path: Path, config: Any, generation: Any, eos: Any) -> None:
    write_json(tmp_path / "generation_config.json", {"eos_token_id": generation})
    assert read(tmp_path, eos_token_id=config).eos_token_ids == eos


def test_absent_ids_have_the_architectures_defaults(tmp_path: Path) -> None:
    for model_type in ("llama", "llama_scale_seq"):
        settings = read(tmp_path, model_type=model_type)
        assert (settings.bos_token_id, settings.eos_token_ids) == (1, (2,))
    settings = read(tmp_path, model_type="qwen2")
    assert (settings.bos_token_id, settings.eos_token_ids) == (None, ())
    write_json(tmp_path / "generation_config.json", {"eos_token_id": 9, "bos_token_id": 8})
    settings = read(tmp_path)
    assert (settings.bos_token_id, settings.eos_token_ids) == (8, (9,))


@pytest.mark.parametrize(
    ("tokenizer", "adds"),
    [
        ({"add_bos_token": True}, True),
        ({"add_bos_token": False, "tokenizer_class": "LlamaTokenizer"}, False),
        ({"tokenizer_class": "LlamaTokenizerFast"}, True),
        ({"tokenizer_class": "Qwen2Tokenizer"}, False),
        ({}, False),
        (None, False),
    ],
)
def test_add_bos_token(tmp_path: Path, tokenizer: object, adds: bool) -> None:
    if tokenizer is not None:
        write_json(tmp_path / "tokenizer_config.json", tokenizer)
    assert read(tmp_path).add_bos_token is adds


def test_tokenizer_files(tmp_path: Path) -> None:
    write_json(tmp_path / "tokenizer_config.json", {})
    (tmp_path / "chat_template.jinja").write_text("x")
    assert read(tmp_path).tokenizer_files == ()  # nothing to tokenize with
    write_json(tmp_path / "tokenizer.json", {})
    names = [file.name for file in read(tmp_path).tokenizer_files]
    assert names == ["tokenizer.json", "tokenizer_config.json", "chat_template.jinja"]


@pytest.mark.parametrize(
    ("file", "key", "value", "asked"),
    [
        ("config.json", "eos_token_id", "2", "eos_token_id in"),
        ("config.json", "bos_token_id", [True], "bos_token_id in"),
        ("generation_config.json", "eos_token_id", [2, None], "eos_token_id in"),
        ("tokenizer_config.json", "add_bos_token", 1, "add_bos_token in"),
    ],
)
def test_wrong_types(tmp_path: Path, file: str, key: str, value: object, asked: str) -> None:
    write_dense(tmp_path, **({key: value} if file == "config.json" else {}))
    if file != "config.json":
        write_json(tmp_path / file, {key: value})
    with pytest.raises(CheckpointError) as caught:
        open_checkpoint(tmp_path)
    assert asked in caught.value.asked and str(tmp_path / file) in caught.value.asked


def test_damaged_generation_config(tmp_path: Path) -> None:
    write_dense(tmp_path)
    (tmp_path / "generation_config.json").write_text("{")
    with pytest.raises(CheckpointError, match=r"generation_config\.json as a JSON object"):
        open_checkpoint(tmp_path)
