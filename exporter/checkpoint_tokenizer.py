"""The tokenizer of a checkpoint: seen to be whole, opened, and copied into a bundle."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from quatrain.exporter.bundle import record_file
from quatrain.exporter.checkpoint import Checkpoint
from quatrain.exporter.errors import CheckpointError
from quatrain.runtime.errors import BundleError, fix_reading
from quatrain.runtime.manifest import FileRecord, TokenizerInfo
from quatrain.runtime.tokenizer import Tokenizer

__all__ = ["check_checkpoint_tokenizer", "copy_tokenizer", "open_checkpoint_tokenizer"]


class _TokenizerFile(msgspec.Struct):
    """What every tokenizer of the library has, not looked into."""

    model: msgspec.Raw


def check_checkpoint_tokenizer(checkpoint: Checkpoint) -> None:
    """See that its tokenizer.json is one, and neither cut short nor a page or pointer instead.

    That takes an eighth of the time of opening it.

    Raises:
        CheckpointError: The file cannot be read, or is damaged.
    """
    if checkpoint.tokenizer_files:
        path = checkpoint.tokenizer_files[0]
        with _told(path):
            msgspec.json.decode(path.read_bytes(), type=_TokenizerFile)


def open_checkpoint_tokenizer(checkpoint: Checkpoint) -> Tokenizer | None:
    """Open its tokenizer.json; None where it has none.

    Raises:
        CheckpointError: The file cannot be read, or is damaged.
    """
    if not checkpoint.tokenizer_files:
        return None
    path = checkpoint.tokenizer_files[0]
    with _told(path):
        path.open("rb").close()  # the library does not tell a closed file from a damaged one
        return Tokenizer(path, checkpoint.bos_token_id, checkpoint.add_bos_token)


def copy_tokenizer(
    bundle: Path, checkpoint: Checkpoint
) -> tuple[TokenizerInfo | None, list[FileRecord]]:
    """Copy its files; what the manifest says of them."""
    if not checkpoint.tokenizer_files:
        return None, []
    (bundle / "tokenizer").mkdir()
    paths = [f"tokenizer/{file.name}" for file in checkpoint.tokenizer_files]
    for file, path in zip(checkpoint.tokenizer_files, paths, strict=True):
        shutil.copyfile(file, bundle / path)
    template = "tokenizer/chat_template.jinja"
    info = TokenizerInfo(
        path="tokenizer/tokenizer.json",
        bos_token_id=checkpoint.bos_token_id,
        add_bos_token=checkpoint.add_bos_token,
        chat_template=template if template in paths else None,
    )
    return info, [record_file(bundle, path) for path in paths]


@contextmanager
def _told(path: Path) -> Iterator[None]:
    """What is wrong with the file, as an error that names it."""
    fix = f"fetch {path.name} again, whole"
    try:
        yield
    except OSError as error:
        found = error.strerror or str(error)
        raise CheckpointError(f"reading {path}", found, fix_reading(error, fix)) from error
    except (BundleError, msgspec.DecodeError) as error:
        found = error.found if isinstance(error, BundleError) else str(error)
        raise CheckpointError(f"reading {path} as a tokenizer", found, fix) from error
