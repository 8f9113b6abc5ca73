"""Reads back the weights of a checkpoint folder, to go on from them."""

from collections.abc import Sequence
from pathlib import Path

from safetensors.torch import load_file
from tokenizers import Tokenizer
from torch import nn


def find_checkpoint(name: str, parents: Sequence[Path]) -> Path:
    """The first of the folders that has this checkpoint."""
    for parent in parents:
        if (parent / name / "model.safetensors").is_file():
            return parent / name
    places = ", ".join(str(parent) for parent in parents)
    raise FileNotFoundError(f"no {name} in {places}; train it first, or in the same run")


def check_tokenizer(folder: Path, tokenizer: Tokenizer) -> None:
    """The checkpoint's ids must mean what the ids of this run mean."""
    stored = Tokenizer.from_file(str(folder / "tokenizer.json"))
    if stored.to_str() != tokenizer.to_str():
        raise ValueError(
            f"{folder} has another tokenizer than this Python's topics give; "
            "train its model in the same run"
        )


def load_weights(model: nn.Module, folder: Path) -> None:
    """Fill the model, in float32."""
    tensors = load_file(folder / "model.safetensors")
    model.load_state_dict({name: tensor.float() for name, tensor in tensors.items()})
