"""The tokenizer of a checkpoint, opened to see that it is whole."""

from quatrain.exporter.checkpoint.checkpoint import Checkpoint
from quatrain.exporter.errors import CheckpointError
from quatrain.runtime.errors import BundleError, fix_reading
from quatrain.runtime.tokenizer import Tokenizer

__all__ = ["open_checkpoint_tokenizer"]


def open_checkpoint_tokenizer(checkpoint: Checkpoint) -> Tokenizer | None:
    """Open its tokenizer.json; None where it has none.

    Raises:
        CheckpointError: The file cannot be read, or is damaged.
    """
    if not checkpoint.tokenizer_files:
        return None
    path = checkpoint.tokenizer_files[0]
    fix = f"fetch {path.name} again, whole"
    try:
        path.open("rb").close()  # the library does not tell a closed file from a damaged one
        return Tokenizer(path, checkpoint.bos_token_id, checkpoint.add_bos_token)
    except OSError as error:
        found = error.strerror or str(error)
        raise CheckpointError(f"reading {path}", found, fix_reading(error, fix)) from error
    except BundleError as error:
        raise CheckpointError(f"reading {path} as a tokenizer", error.found, fix) from error
