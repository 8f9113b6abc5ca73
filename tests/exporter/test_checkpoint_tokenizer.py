"""A checkpoint's tokenizer is opened before it is copied or used."""

import os
from pathlib import Path

import pytest
import tokenizers
from tests.exporter.checkpoint.folders import write_dense
from tokenizers.models import WordLevel

from quatrain.exporter import export_checkpoint, open_checkpoint
from quatrain.exporter.checkpoint_tokenizer import (
    check_checkpoint_tokenizer,
    open_checkpoint_tokenizer,
)
from quatrain.exporter.errors import CheckpointError
from quatrain.exporter.export import plan_export


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    folder = write_dense(tmp_path / "checkpoint")
    words = {"[unk]": 0, "a": 3, "b": 4}
    tokenizers.Tokenizer(WordLevel(words, "[unk]")).save(str(folder / "tokenizer.json"))
    return folder


def test_a_whole_one_is_opened(checkpoint: Path) -> None:
    tokenizer = open_checkpoint_tokenizer(open_checkpoint(checkpoint))
    assert tokenizer is not None and tokenizer.encode("a") == [3]
    (checkpoint / "tokenizer.json").unlink()
    assert open_checkpoint_tokenizer(open_checkpoint(checkpoint)) is None


@pytest.mark.parametrize("settings", [{}, {"self_test": False, "verify": False}])
def test_no_export_copies_one_that_was_cut_short(
    checkpoint: Path, tmp_path: Path, settings: dict[str, bool]
) -> None:
    file = checkpoint / "tokenizer.json"
    file.write_bytes(file.read_bytes()[:-20])
    with pytest.raises(CheckpointError) as caught:
        export_checkpoint(checkpoint, tmp_path / "bundle", **settings)  # type: ignore[arg-type]
    assert caught.value.asked == f"reading {file} as a tokenizer"
    assert caught.value.fix == "fetch tokenizer.json again, whole"
    with pytest.raises(CheckpointError, match="as a tokenizer"):
        plan_export(checkpoint)
    assert os.listdir(tmp_path) == ["checkpoint"]


def test_one_that_is_json_and_no_tokenizer_is_named_where_it_lies(
    checkpoint: Path, tmp_path: Path
) -> None:
    file = checkpoint / "tokenizer.json"
    file.write_text("{}")
    with pytest.raises(CheckpointError) as caught:
        export_checkpoint(checkpoint, tmp_path / "bundle", self_test=True)
    assert caught.value.asked == f"reading {file} as a tokenizer"
    assert os.listdir(tmp_path) == ["checkpoint"]


def test_one_that_may_not_be_read(checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def deny(self: Path, *args: object, **settings: object) -> None:
        raise PermissionError(13, "Permission denied", str(self))

    opened = open_checkpoint(checkpoint)
    monkeypatch.setattr(Path, "open", deny)
    for read in (check_checkpoint_tokenizer, open_checkpoint_tokenizer):
        with pytest.raises(CheckpointError) as caught:
            read(opened)
        assert caught.value.found == "Permission denied" and "fetch" not in caught.value.fix
