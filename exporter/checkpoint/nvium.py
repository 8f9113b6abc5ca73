"""N-vium settings: where they are kept, and whether they agree with the tensors.

The formats are those of github.com/ETH-DISCO/n-vium (pretraining/Nvium/Nvium_model.py and
Nvium_utils.py): config.json is a plain Llama's, the depth axis is in a Hydra YAML.
"""

import os
import re
from collections.abc import Mapping
from pathlib import Path
from stat import S_ISREG
from typing import Literal

from quatrain.exporter.checkpoint.fields import Fields
from quatrain.exporter.checkpoint.lazy_tensor import LazyTensor
from quatrain.exporter.checkpoint.names import early_head_name
from quatrain.exporter.errors import CheckpointError
from quatrain.exporter.spec import Backbone, Exits, Router
from quatrain.runtime.errors import fix_reading

__all__ = [
    "find_nvium_settings",
    "is_nvium",
    "place_nvium_settings",
    "read_exits",
    "read_tie_word_embeddings",
]

_FINE_TUNED = "ft_exp_config.yaml"
_PRETRAINED = Path(".hydra") / "config.yaml"

Tensors = Mapping[str, LazyTensor]


def is_nvium(tensors: Tensors) -> bool:
    """Whether the tensors are an N-vium model's: no other model has norms at exits.

    The YAML's own `model_type` is no help: its loaders and its published files disagree about it.
    """
    return any(name.startswith("early_norms.") for name in tensors)


def find_nvium_settings(folder: Path) -> Path:
    """Find the settings of the N-vium checkpoint in `folder`.

    `ft_exp_config.yaml` goes first: fine-tuning writes it with the very weights it lies beside,
    while a `.hydra` folder, one or two folders up, is that of the run the tuning began from.

    Raises:
        CheckpointError: There is none; says where it was looked for.
    """
    here = Path(os.path.abspath(folder))  # by name, so a linked checkpoint keeps its neighbours
    parents = [here, *here.parents][:3]
    candidates = [here / _FINE_TUNED, *(parent / _PRETRAINED for parent in parents)]
    for candidate in candidates:
        if _is_there(candidate):
            return candidate
    raise CheckpointError(
        f"the N-vium settings of {folder} (it has early_norms tensors)",
        f"none of {', '.join(str(candidate) for candidate in candidates)}",
        f"put the training run's {_PRETRAINED} into the checkpoint folder",
    )


def _is_there(path: Path) -> bool:
    try:
        return S_ISREG(path.stat().st_mode)
    except PermissionError as error:
        fix = fix_reading(error, "")
        raise CheckpointError(f"reading {path}", error.strerror or str(error), fix) from error
    except OSError:
        return False


def place_nvium_settings(found: Path) -> Path:
    """Where in a checkpoint folder the settings that were `found` belong, relative to it.

    Wherever a `.hydra` folder was found, the checkpoint's own is looked into before it.
    """
    return Path(_FINE_TUNED) if found.name == _FINE_TUNED else _PRETRAINED


def read_tie_word_embeddings(settings: Fields, config: Fields) -> bool:
    """Whether the final head is the embedding table: both files say it, and must agree.

    Raises:
        CheckpointError: They contradict each other.
    """
    tying, key = settings.section("tying"), "tie_final_to_embeddings"
    stored = config.flag("tie_word_embeddings", False)
    # The trainer writes its own choice into config.json, so that one counts where YAML is silent.
    tied = tying.flag(key, stored)
    if config.has("tie_word_embeddings") and tied != stored:
        raise _contradiction(
            f"{tying.name(key)} = {tied} in {settings.source}",
            f"tie_word_embeddings = {stored} in {config.source}",
        )
    return tied


def read_exits(settings: Fields, backbone: Backbone, tensors: Tensors) -> Exits:
    """Read the depth axis; what is absent has the reference implementation's default.

    Raises:
        CheckpointError: Malformed settings, or settings that contradict the tensors.
    """
    layers = tuple(sorted(settings.integers("early_layer_idx")))
    if not layers:
        raise settings.wrong("early_layer_idx", "the layers after which the exits sit")
    stored = _count(r"early_norms\.(\d+)\.weight", tensors)
    if stored != len(layers):
        raise _contradiction(
            f"early_layer_idx = {list(layers)} in {settings.source}: {len(layers)} early exits",
            f"early_norms of {stored} exits in the weights",
        )
    hidden = backbone.hidden_size
    return Exits(
        layers=layers,
        router=_read_router(settings.section("router"), len(layers), tensors),
        adapter_size=_read_adapter(settings, "early_adapter", "early_adapters.0", hidden, tensors),
        final_adapter_size=_read_adapter(
            settings, "final_adapter", "final_adapter", hidden, tensors
        ),
        early_head=_read_early_head(settings.section("tying"), len(layers), tensors),
    )


def _read_router(router: Fields, num_exits: int, tensors: Tensors) -> Router:
    kind = router.text("router_type")
    if kind not in ("simple_mlp", "simple_deep_mlp"):
        raise CheckpointError(
            f"an exit router with {router.name('router_type')} = {kind!r} in {router.source}",
            "simple_mlp and simple_deep_mlp are supported",
            "use a checkpoint with one of these",
        )
    # simple_mlp is one block whatever num_layers says.
    num_layers = 1 if kind == "simple_mlp" else router.integer("num_layers", 2)
    hidden = router.integer("hidden_size", 512)
    intermediate = router.integer("intermediate_size", 2 * hidden)
    for k in range(num_exits):
        stored = _count(rf"router_layers\.{k}\.layers\.(\d+)\.fc1\.weight", tensors)
        if stored != num_layers:
            raise _contradiction(
                f"router_type = {kind} in {router.source}: blocks 0 to {num_layers - 1}",
                f"router_layers.{k} has {stored} blocks in the weights",
            )
        block = f"router_layers.{k}.layers.0.fc2.weight"
        _check_size(router, "hidden_size", hidden, tensors, block, 0)
        _check_size(router, "intermediate_size", intermediate, tensors, block, 1)
    return Router(num_layers, hidden, intermediate, router.positive("router_temp", 1.0))


def _read_adapter(
    settings: Fields, key: str, prefix: str, hidden: int, tensors: Tensors
) -> int | None:
    adapter = settings.section(key)
    enabled = adapter.flag("enabled", False)
    name = f"{prefix}.0.weight"
    if enabled != (name in tensors):
        raise _contradiction(
            f"{adapter.name('enabled')} = {enabled} in {adapter.source}",
            f"{'no ' if enabled else ''}{name} in the weights",
        )
    if not enabled:
        return None
    size = adapter.integer("dim", hidden)
    _check_size(adapter, "dim", size, tensors, name, 0)
    return size


def _read_early_head(
    tying: Fields, num_exits: int, tensors: Tensors
) -> Literal["lm_head", "embeddings", "own"]:
    if tying.flag("tie_early_to_final", False):
        return "lm_head"
    if tying.flag("tie_early_to_embeddings", False):
        return "embeddings"
    if not any(early_head_name(k) in tensors for k in range(num_exits)):
        raise _contradiction(
            f"early heads of their own in {tying.source}: "
            f"neither {tying.name('tie_early_to_final')} nor "
            f"{tying.name('tie_early_to_embeddings')} is true",
            "no early_lm_heads in the weights",
        )
    return "own"


def _check_size(
    section: Fields, key: str, said: int, tensors: Tensors, name: str, axis: int
) -> None:
    tensor = tensors.get(name)
    # Absent or of another rank: the check of all names and shapes will say so.
    if tensor is not None and len(tensor.shape) == 2 and tensor.shape[axis] != said:
        raise _contradiction(
            f"{section.name(key)} = {said} in {section.source}",
            f"{name} of shape {list(tensor.shape)} in the weights",
        )


def _count(pattern: str, tensors: Tensors) -> int:
    return len({match[1] for name in tensors if (match := re.fullmatch(pattern, name))})


def _contradiction(said: str, found: str) -> CheckpointError:
    return CheckpointError(
        said, found, "use the settings that these weights were trained with, or correct them"
    )
