"""What a benchmark runs, checked before anything is started."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from quatrain.runtime.errors import RequestError
from quatrain.runtime.length_limit import advise_on_length
from quatrain.runtime.manifest import Manifest

__all__ = ["BenchSetting", "Case", "check_setting", "choose_draft", "choose_routing", "list_cases"]


@dataclass(frozen=True, slots=True)
class BenchSetting:
    """How to measure.

    Every case is measured `repeats` times behind `warm_ups` that do not count. Decoding is greedy
    and goes past the end-of-text token, so that every bundle makes as many tokens; a model with
    exits draws the exit of each token (`routing="sample"`), which is how it is meant to run, and
    not what `SamplingParams` does at temperature 0 unless told to.
    """

    prompt_tokens: tuple[int, ...] = (128,)
    new_tokens: int = 64
    batch: int = 1
    threads: int | None = None
    """None: ONNX Runtime's choice, one a core."""
    repeats: int = 5
    warm_ups: int = 1
    backend: Literal["auto", "onnxruntime", "tensorrt"] = "auto"
    draft: Literal["auto"] | int = "auto"
    session_cache: Path | None = None


@dataclass(frozen=True, slots=True)
class Case:
    """One measurement: so many sequences of so many tokens each, and tokens to make for each."""

    prompt_tokens: int
    new_tokens: int
    batch: int


def list_cases(setting: BenchSetting) -> list[Case]:
    """A case for each length of prompt."""
    return [
        Case(prompt_tokens, setting.new_tokens, setting.batch)
        for prompt_tokens in dict.fromkeys(setting.prompt_tokens)
    ]


def choose_draft(setting: BenchSetting, manifest: Manifest) -> Literal["auto"] | int:
    """The setting is for all bundles: one without a drafter drafts nothing."""
    return 0 if manifest.drafter is None else setting.draft


def choose_routing(manifest: Manifest) -> Literal["sample"] | None:
    """How exits are chosen; None where there are none."""
    return None if manifest.exits is None else "sample"


def check_setting(setting: BenchSetting, manifest: Manifest, name: str) -> None:
    """Raise `RequestError` for what cannot be measured, or not with this bundle."""
    _check_counts(setting)
    limits = manifest.limits
    longest = max(setting.prompt_tokens) + setting.new_tokens
    if longest > limits.max_seq_len:
        fewer = "ask for fewer (--prompt-tokens, --new-tokens)"
        raise RequestError(
            f"{max(setting.prompt_tokens)} tokens of prompt and {setting.new_tokens} new ones",
            f"{name} was exported for sequences of {limits.max_seq_len} tokens",
            advise_on_length(fewer, longest, manifest),
        )
    if setting.batch > limits.max_batch:
        raise RequestError(
            f"a batch of {setting.batch}",
            f"{name} was exported for batches of 1 to {limits.max_batch}",
            "give a smaller --batch, or export with a larger --max-batch",
        )


def _check_counts(setting: BenchSetting) -> None:
    counts = {
        "--prompt-tokens": min(setting.prompt_tokens, default=0),
        "--batch": setting.batch,
        "--repeats": setting.repeats,
    }
    for flag, count in counts.items():
        if count < 1:
            raise RequestError(f"{flag} {count}", "there is nothing to measure", "give at least 1")
    if setting.new_tokens < 2:
        raise RequestError(
            f"--new-tokens {setting.new_tokens}",
            "the first token is the prompt's work, so there would be no step to time",
            "give at least 2",
        )
    if setting.warm_ups < 0:
        raise RequestError(
            f"--warm-ups {setting.warm_ups}", "that is no number of runs", "give 0 or more"
        )
    cores = os.cpu_count() or 1
    if setting.threads is not None and not 1 <= setting.threads <= cores:
        raise RequestError(
            f"--threads {setting.threads}",
            f"this machine has {cores} cores; threads that share one wait for each other",
            f"give 1 to {cores}",
        )
