"""The models to train: one recipe each, all on the same text."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial

from torch import Tensor

from samples.train.bank_topk import BankSettings, BankTopKLlama, add_predictors
from samples.train.hilp import HilpLlama, HilpSettings
from samples.train.hydra import describe_nvium, format_yaml
from samples.train.llama import DenseLlama, LanguageModel, LlamaSettings
from samples.train.loop import LoopSettings
from samples.train.nextlat import NextLatLlama, NextLatSettings
from samples.train.nvium import NviumLlama, NviumSettings
from samples.train.refine import RefineSettings
from samples.train.streams import HiddenDecodingLlama, StreamSettings, expand_tables

NVIUM = NviumSettings()
STREAMS = StreamSettings()
BANKS = BankSettings()
HILP = HilpSettings()
NEXTLAT = NextLatSettings()
REFINE = RefineSettings()

Weights = Mapping[str, Tensor]


def no_files(llama: LlamaSettings, loop: LoopSettings) -> Mapping[str, str]:
    """The common files are enough."""
    return {}


def nvium_files(llama: LlamaSettings, loop: LoopSettings) -> Mapping[str, str]:
    """N-vium keeps its settings outside config.json."""
    return {".hydra/config.yaml": format_yaml(describe_nvium(llama, NVIUM, loop))}


def no_config(llama: LlamaSettings) -> Mapping[str, object]:
    """A plain LlamaConfig says it all."""
    return {}


def stream_config(llama: LlamaSettings) -> Mapping[str, object]:
    """Streams under a model type of their own: no tool may take the model for a plain Llama."""
    return {"model_type": "llama_scale_seq"} | STREAMS.as_dict(llama.num_hidden_layers)


def bank_config(llama: LlamaSettings) -> Mapping[str, object]:
    """A Llama with one key more."""
    return BANKS.as_dict()


def hilp_config(llama: LlamaSettings) -> Mapping[str, object]:
    """A Llama with one key more."""
    return HILP.as_dict()


@dataclass(frozen=True, slots=True)
class Start:
    """The recipe whose weights another one goes on from, and what becomes of them first.

    Tensors that it does not give start at random, from the seed.
    """

    recipe: str
    adapt: Callable[[Weights], Weights]


@dataclass(frozen=True, slots=True)
class Recipe:
    """How to build one model, and what its checkpoint needs beyond the common files."""

    name: str
    architecture: str | None
    """None: saved in NextLat's layout, not in Hugging Face's."""
    build: Callable[[LlamaSettings], LanguageModel]
    extra_files: Callable[[LlamaSettings, LoopSettings], Mapping[str, str]] = no_files
    extra_config: Callable[[LlamaSettings], Mapping[str, object]] = no_config
    start: Start | None = None
    """None: random weights."""
    is_control: bool = field(default=False, kw_only=True)
    """Trained for its score alone; not saved."""

    def adapt_loop(self, loop: LoopSettings) -> LoopSettings:
        """Going on takes half the steps, new windows and a third of the learning rate."""
        if self.start is None:
            return loop
        return replace(
            loop,
            steps=max(1, loop.steps // 2),
            seed=loop.seed + 1,
            learning_rate=loop.learning_rate / 3,
            min_learning_rate=loop.min_learning_rate / 3,
            warmup_ratio=0.1,
        )


RECIPES = (
    Recipe("dense", "LlamaForCausalLM", DenseLlama),
    Recipe("nvium", "NviumModel", partial(NviumLlama, nvium=NVIUM), nvium_files),
    # What the extra steps alone are worth: the same steps and batches as all that follow.
    Recipe(
        "dense-continued",
        "LlamaForCausalLM",
        DenseLlama,
        start=Start("dense", dict),
        is_control=True,
    ),
    Recipe(
        "hidden-decoding",
        "LlamaScaleSeqForCausalLM",
        partial(HiddenDecodingLlama, streams=STREAMS),
        extra_config=stream_config,
        start=Start("dense", partial(expand_tables, num_streams=STREAMS.num_streams)),
    ),
    Recipe(
        "bank-topk",
        "LlamaBankTopKForCausalLM",
        partial(BankTopKLlama, banks=BANKS),
        extra_config=bank_config,
        start=Start("dense", partial(add_predictors, rank=BANKS.predictor_rank)),
    ),
    Recipe(
        "hilp",
        "LlamaHiLPForCausalLM",
        partial(HilpLlama, hilp=HILP),
        extra_config=hilp_config,
        start=Start("dense", dict),
    ),
    Recipe("nextlat", None, partial(NextLatLlama, nextlat=NEXTLAT), start=Start("dense", dict)),
)


def find_recipe(name: str) -> Recipe:
    """The recipe of this name."""
    return next(recipe for recipe in RECIPES if recipe.name == name)
