"""Texts as windows of token ids."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from quatrain.exporter import open_checkpoint
from quatrain.exporter.calibration_text import read_windows
from quatrain.runtime.tokenizer import Tokenizer

TEXT = "The old man and the sea. " * 60


@pytest.mark.parametrize("has_bos", [False, True])
def test_windows_follow_the_text_and_begin_as_it_does(
    tmp_path: Path, root: Path, has_bos: bool
) -> None:
    folder = shutil.copytree(root / "samples" / "checkpoints" / "topics-dense", tmp_path / "dense")
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    if not has_bos:  # both the tokenizer and its settings ask for it
        (folder / "tokenizer.json").write_text(json.dumps(tokenizer | {"post_processor": None}))
        (folder / "tokenizer_config.json").write_text(json.dumps({"add_bos_token": False}))
    source = open_checkpoint(folder)
    (tmp_path / "text.txt").write_text(TEXT)
    limits: dict[str, Any] = {"asked": "fit predictors", "default_tokens": 10_000}
    text = read_windows(source, tmp_path / "text.txt", None, 10, **limits)
    windows = np.concatenate([text.fitted, text.held_out])
    assert windows.shape[1] == 10
    assert len(text.held_out) == round(len(windows) * 0.1) > 1
    if has_bos:
        assert (windows[:, 0] == source.bos_token_id).all()
        windows = windows[:, 1:]
    ids = Tokenizer(folder / "tokenizer.json", None, False).encode(TEXT, is_start=False)
    assert 0 <= len(ids) - windows.size < windows.shape[1]
    assert windows.ravel().tolist() == ids[: windows.size]
    limited = read_windows(source, tmp_path / "text.txt", 100, 10, **limits)
    assert limited.fitted.size + limited.held_out.size <= 100 + 11 * has_bos
