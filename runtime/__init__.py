"""Runs bundles: `LLM(bundle).generate(...)` on ONNX Runtime or TensorRT.

Importing this loads neither of them; opening a bundle loads the one it needs.
"""

from quatrain.runtime.bundle_check import verify_bundle
from quatrain.runtime.conversation import Conversation
from quatrain.runtime.errors import BundleError, EngineError, QuatrainError, RequestError
from quatrain.runtime.llm import LLM
from quatrain.runtime.perplexity import PerplexityResult, perplexity
from quatrain.runtime.results import (
    DraftPeriod,
    DraftStatistics,
    GenerationResult,
    GenerationStats,
    StreamDelta,
)
from quatrain.runtime.sampling import SamplingParams

__all__ = [
    "LLM",
    "BundleError",
    "Conversation",
    "DraftPeriod",
    "DraftStatistics",
    "EngineError",
    "GenerationResult",
    "GenerationStats",
    "PerplexityResult",
    "QuatrainError",
    "RequestError",
    "SamplingParams",
    "StreamDelta",
    "perplexity",
    "verify_bundle",
]
