"""The golden model with a tokenizer, opened once, and a tokenizer of bytes."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import tokenizers
from tests.runtime.llm_cases import save_tokenizer
from tokenizers import decoders, models, pre_tokenizers

from quatrain.runtime import LLM
from quatrain.runtime.tokenizer import Tokenizer


@pytest.fixture(scope="session")
def text_bundle(nvium_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The golden model with a tokenizer and tight limits."""
    from quatrain.exporter import export_checkpoint

    folder = tmp_path_factory.mktemp("text")
    shutil.copytree(nvium_checkpoint, folder / "checkpoint", copy_function=shutil.copyfile)
    (folder / "checkpoint").chmod(0o755)
    save_tokenizer(folder / "checkpoint")
    bundle = folder / "bundle"
    export_checkpoint(folder / "checkpoint", bundle, max_seq_len=48, max_batch=2, prefill_chunk=8)
    return bundle


@pytest.fixture(scope="session")
def text_llm(text_bundle: Path) -> Iterator[LLM]:
    with LLM(text_bundle, backend="onnxruntime", threads=1) as opened:
        yield opened


@pytest.fixture(scope="session")
def byte_tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    """One token per byte, so that text can be scripted."""
    vocabulary = {char: i for i, char in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    raw = tokenizers.Tokenizer(models.BPE(vocabulary, []))
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    raw.decoder = decoders.ByteLevel()
    path = tmp_path_factory.mktemp("bytes") / "tokenizer.json"
    raw.save(str(path))
    return Tokenizer(path, None, False)
