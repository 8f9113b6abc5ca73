"""The models to train: one recipe each, all on the same text, batches and budget."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

from samples.train.hydra import describe_nvium, format_yaml
from samples.train.llama import DenseLlama, LanguageModel, LlamaSettings
from samples.train.loop import LoopSettings
from samples.train.nvium import NviumLlama, NviumSettings

NVIUM = NviumSettings()


@dataclass(frozen=True, slots=True)
class Recipe:
    """How to build one model, and what its checkpoint needs beyond the common files."""

    name: str
    architecture: str
    build: Callable[[LlamaSettings], LanguageModel]
    extra_files: Callable[[LlamaSettings, LoopSettings], Mapping[str, str]]


def no_files(llama: LlamaSettings, loop: LoopSettings) -> Mapping[str, str]:
    """The common files are enough."""
    return {}


def nvium_files(llama: LlamaSettings, loop: LoopSettings) -> Mapping[str, str]:
    """N-vium keeps its settings outside config.json."""
    return {".hydra/config.yaml": format_yaml(describe_nvium(llama, NVIUM, loop))}


RECIPES = (
    Recipe("dense", "LlamaForCausalLM", DenseLlama, no_files),
    Recipe("nvium", "NviumModel", partial(NviumLlama, nvium=NVIUM), nvium_files),
)
