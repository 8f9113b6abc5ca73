"""The sample models that are committed, and where they are."""

from pathlib import Path

from samples.train.bank_topk import BankTopKLlama
from samples.train.hilp import HilpLlama
from samples.train.llama import DenseLlama, LlamaSettings
from samples.train.nextlat import NextLatLlama
from samples.train.nvium import NviumLlama, NviumSettings
from samples.train.recipes import BANKS, HILP, NEXTLAT, STREAMS
from samples.train.streams import HiddenDecodingLlama

COMMITTED = Path(__file__).parents[2] / "samples" / "checkpoints"


def build_named(name: str) -> DenseLlama | NviumLlama:
    settings = LlamaSettings()
    if name == "topics-hidden-decoding":
        return HiddenDecodingLlama(settings, STREAMS)
    if name == "topics-bank-topk":
        return BankTopKLlama(settings, BANKS)
    if name == "topics-hilp":
        return HilpLlama(settings, HILP)
    if name == "topics-nextlat":
        return NextLatLlama(settings, NEXTLAT)
    if name == "topics-nvium":
        return NviumLlama(settings, NviumSettings())
    return DenseLlama(settings)
