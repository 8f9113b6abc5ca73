"""A NextLat checkpoint: a Lightning Fabric .pt and materialized_config.yaml, under our names.

The layout is that of github.com/JaydenTeoh/NextLat (arXiv 2511.05963). Its backbone is a Llama
with one key and value head for each query head; queries, keys and values are stacked in one
matrix, gate and up in another, and each part is a view of some rows.
"""

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from os.path import isfile
from pathlib import Path

from quatrain.exporter.checkpoint.drafter import FoundDrafter
from quatrain.exporter.checkpoint.fields import Fields
from quatrain.exporter.checkpoint.lazy_tensor import LazyTensor
from quatrain.exporter.checkpoint.listing import shorten
from quatrain.exporter.checkpoint.names import (
    EMBEDDINGS,
    LM_HEAD,
    dynamics_model_name,
    feed_forward_name,
    is_dynamics,
)
from quatrain.exporter.checkpoint.torch_archive import read_torch_tensors
from quatrain.exporter.checkpoint.weight_files import check_file_names, strip_wrappers
from quatrain.exporter.checkpoint.yaml_file import read_yaml_mapping
from quatrain.exporter.errors import CheckpointError
from quatrain.exporter.spec import Backbone, Drafter

__all__ = ["NextLat", "is_nextlat", "read_nextlat"]

SETTINGS = "materialized_config.yaml"
_SECTION = "model"
_EPS = 1e-5  # of all norms

_BLOCK = re.compile(r"(?:transformer\.)?blocks\.([0-9]{1,9})\.(.+)\.weight")
_TOP = re.compile(r"(?:transformer\.)?(token_embedding|norm|lm_head)\.weight")
_TOP_NAMES = {"token_embedding": EMBEDDINGS, "norm": "model.norm.weight", "lm_head": LM_HEAD}
# A matrix of a block, and ours that are stacked in it.
_BLOCK_NAMES = {
    "ln_1": ("input_layernorm",),
    "ln_2": ("post_attention_layernorm",),
    "attn.c_attn": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "attn.c_proj": ("self_attn.o_proj",),
    "mlp.up.gate_up": ("mlp.gate_proj", "mlp.up_proj"),
    "mlp.down": ("mlp.down_proj",),
}

Tensors = Mapping[str, LazyTensor]


@dataclass(frozen=True, slots=True)
class NextLat:
    """What a NextLat folder says; `tensors` has all of the model's, by our names."""

    backbone: Backbone
    found: FoundDrafter
    tensors: Tensors
    file: Path
    settings_file: Path
    document_token_id: int


def is_nextlat(folder: Path) -> bool:
    """Whether a folder is in NextLat's layout; a config.json goes before it."""
    # Not Path.is_file, which raises for a folder that may not be entered.
    return isfile(folder / SETTINGS) and not isfile(folder / "config.json")


def read_nextlat(folder: Path) -> NextLat:
    """Read the settings, and find the tensors: none is loaded, and no pickled code runs.

    Raises:
        CheckpointError: The folder is incomplete, damaged, contradictory or not supported.
        SpecError: Sizes that no decoder can have.
    """
    settings = Fields(read_yaml_mapping(folder / SETTINGS), str(folder / SETTINGS))
    if settings.flag("bias", False):
        raise CheckpointError(
            f"a NextLat decoder with bias = True in {settings.source}",
            "biases, and norms that subtract the mean, which the backbone does not have",
            "use a checkpoint trained with bias: false, NextLat's default",
        )
    file = _find_weights(folder)
    stored = strip_wrappers(folder, read_torch_tensors(file, _SECTION).values())
    tensors = _rename(stored, str(file))
    return NextLat(
        backbone=_read_backbone(settings, tensors, str(file)),
        found=_find_drafter(tensors, str(file)),
        tensors=tensors,
        file=file,
        settings_file=folder / SETTINGS,
        document_token_id=_read_document_token(settings),
    )


def _find_weights(folder: Path) -> Path:
    files = sorted(folder.glob("*.pt"))
    if len(files) != 1:
        raise CheckpointError(
            f"the weights of {folder}: the one .pt file beside {SETTINGS}",
            f"{len(files)}: {shorten([file.name for file in files])}" if files else "none",
            "keep the one that Lightning Fabric saved there, whole and not sharded",
        )
    check_file_names(folder, files)
    return files[0]


def _rename(stored: Tensors, source: str) -> dict[str, LazyTensor]:
    renamed = [ours for tensor in stored.values() for ours in _give_our_names(tensor, source)]
    counts = Counter(tensor.name for tensor in renamed)
    twice = sorted(tensor.stored_name for tensor in renamed if counts[tensor.name] > 1)
    if twice:
        raise CheckpointError(
            f"the tensors of {source}, each once",
            f"names that mean the same: {shorten(twice)}",
            "save the model again from one state dict",
        )
    return {tensor.name: tensor for tensor in renamed}


def _give_our_names(tensor: LazyTensor, source: str) -> Iterator[LazyTensor]:
    if match := _TOP.fullmatch(tensor.name):
        yield replace(tensor, name=_TOP_NAMES[match[1]])
        return
    match = _BLOCK.fullmatch(tensor.name)
    parts = None if match is None else _BLOCK_NAMES.get(match[2])
    if match is None or parts is None:
        yield tensor
        return
    names = [f"model.layers.{int(match[1])}.{part}.weight" for part in parts]
    yield from _split_rows(tensor, names, source)


def _split_rows(tensor: LazyTensor, names: list[str], source: str) -> Iterator[LazyTensor]:
    """Views of equally many rows each."""
    if len(names) == 1:
        yield replace(tensor, name=names[0])
        return
    if len(tensor.shape) != 2 or tensor.shape[0] % len(names):
        raise CheckpointError(
            f"{len(names)} matrices stacked in {tensor.stored_name} of {source}",
            f"the shape {list(tensor.shape)}",
            f"a matrix is needed whose number of rows is a multiple of {len(names)}; check that "
            "the file is of a NextLat model with one key and value head for each query head",
        )
    shape = (tensor.shape[0] // len(names), tensor.shape[1])
    nbytes = tensor.nbytes // len(names)
    for i, name in enumerate(names):
        offset = tensor.offset + i * nbytes
        yield replace(tensor, name=name, shape=shape, offset=offset, nbytes=nbytes)


def _read_backbone(settings: Fields, tensors: Tensors, source: str) -> Backbone:
    heads, hidden = settings.integer("n_head"), settings.integer("n_embd")
    if heads < 1 or hidden % heads:
        raise settings.wrong("n_head", f"a divisor of n_embd = {hidden}")
    context = "block_size" if settings.has("block_size") else "context_length"
    return Backbone(
        model_type="llama",
        vocab_size=settings.integer("vocab_size"),
        hidden_size=hidden,
        intermediate_size=_read_width(tensors, feed_forward_name(0, "gate_proj"), source),
        num_hidden_layers=settings.integer("n_layer"),
        num_attention_heads=heads,
        num_key_value_heads=heads,
        head_dim=hidden // heads,
        max_position_embeddings=settings.integer(context),
        rms_norm_eps=_EPS,
        rope_theta=10000.0,
    )


def _find_drafter(tensors: Tensors, source: str) -> FoundDrafter:
    if not any(map(is_dynamics, tensors)):
        return FoundDrafter(None, "no dynamics_model.* in the checkpoint")
    inner_size = _read_width(tensors, dynamics_model_name("mlp.0"), source)
    return FoundDrafter(Drafter("nextlat", inner_size, residual=True, norm_eps=_EPS))


def _read_width(tensors: Tensors, name: str, source: str) -> int:
    tensor = tensors.get(name)
    if tensor is not None and len(tensor.shape) == 2:
        return tensor.shape[0]
    raise CheckpointError(
        f"a width of the model in {source}, which is that of {name}",
        "no such tensor" if tensor is None else f"a tensor of shape {list(tensor.shape)}",
        "check that the file is that of a whole NextLat model",
    )


def _read_document_token(settings: Fields) -> int:
    token, vocab_size = settings.integer("eos_token_id"), settings.integer("vocab_size")
    if not 0 <= token < vocab_size:
        raise settings.wrong("eos_token_id", f"a token, below vocab_size = {vocab_size}")
    return token
