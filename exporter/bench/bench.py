"""Measures bundles in turns: every round runs each of them, so that all see the same machine."""

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Literal

from quatrain.exporter.bench.report import (
    BenchReport,
    BenchRun,
    Spread,
    find_percentile,
    measure_spread,
)
from quatrain.exporter.bench.runner import Timing
from quatrain.exporter.bench.setting import (
    BenchSetting,
    Case,
    check_setting,
    choose_draft,
    choose_routing,
    list_cases,
)
from quatrain.exporter.bench.unused import check_unused, describe_unused
from quatrain.exporter.bench.worker import Worker
from quatrain.exporter.passage import read_passage
from quatrain.exporter.text_file import read_text
from quatrain.runtime.bundle_check import verify_bundle
from quatrain.runtime.draft_setting import settle_draft
from quatrain.runtime.errors import RequestError
from quatrain.runtime.manifest import Manifest, load_manifest

__all__ = ["bench_bundles"]

_PACKAGES = ("quatrain", "onnxruntime", "numpy", "tensorrt-rtx-cu12", "tensorrt")


def bench_bundles(
    bundles: Sequence[Path],
    setting: BenchSetting | None = None,
    *,
    baseline: Path | None = None,
    text: Path | None = None,
    say: Callable[[str], None] = lambda line: None,
) -> BenchReport:
    """Time, memory and traffic of one or several bundles.

    Each is opened in a process of its own. In every round all of them run the case, first one and
    then another, so that a slow spell of the machine meets all; ratios are taken within a round.

    Args:
        setting: What to run, and how often.
        baseline: The bundle that ratios are over, one of `bundles`. Default: the first, where there
            are several.
        text: What prompts are cut from. Default: a passage that comes with quatrain. Bundles
            without a tokenizer get all their ids in turn instead.
        say: Told of each round.

    Raises:
        QuatrainError: A bundle or the setting is not fit for it, or none of the bundles can make
            use of a number to draft or of `text`. Nothing is written but what
            `setting.session_cache` keeps.
    """
    setting = setting or BenchSetting()
    first = _choose_baseline(bundles, baseline)
    manifests = [_open(bundle, setting) for bundle in bundles]
    opened = dict(zip(bundles, manifests, strict=True))
    check_unused(opened, setting, text)
    prompt = read_passage() if text is None else _read_prompt(text)
    benches = [_Bench(*pair, setting.draft) for pair in zip(bundles, manifests, strict=True)]
    load = _read_load()
    for line in describe_unused(opened, setting):
        say(line)
    with ExitStack() as stack:
        for bench in benches:
            say(f"opening {bench.bundle}")
            bench.worker = stack.enter_context(Worker(bench.bundle, setting))
        for case in list_cases(setting):
            for round_name, is_counted in _list_rounds(setting):
                for bench in _rotate(benches, round_name):
                    timing = bench.worker.time(prompt, case)
                    _tell(say, case, round_name, bench.bundle, timing)
                    if is_counted:
                        bench.timings.setdefault(case, []).append(timing)
    cases = list_cases(setting)
    return BenchReport(
        runs=[_summarise(bench, case, benches[first]) for case in cases for bench in benches],
        baseline=os.fspath(bundles[first]) if len(bundles) > 1 else None,
        same_tokens=[_count_same(benches, case) for case in cases],
        repeats=setting.repeats,
        threads=setting.threads,
        cpus=os.cpu_count() or 1,
        load_average=load,
        versions=_read_versions(),
        session_cache=_name_session_cache(setting, benches),
    )


@dataclass(slots=True)
class _Bench:
    bundle: Path
    manifest: Manifest
    draft: Literal["auto"] | int
    worker: Worker = field(init=False)
    timings: dict[Case, list[Timing]] = field(default_factory=dict)


def _open(bundle: Path, setting: BenchSetting) -> Manifest:
    manifest = load_manifest(bundle)
    verify_bundle(bundle, manifest)
    check_setting(setting, manifest, os.fspath(bundle))
    settle_draft(choose_draft(setting, manifest), manifest)
    return manifest


def _read_prompt(path: Path) -> str:
    text = read_text(path)
    if not text.strip():
        raise RequestError(
            f"prompts cut from {path} (--text)", "there is no word in it", "name a file with text"
        )
    return text


def _choose_baseline(bundles: Sequence[Path], baseline: Path | None) -> int:
    if not bundles:
        raise RequestError("a benchmark", "no bundle was given", "name at least one")
    twice = next((bundle for bundle in bundles if list(bundles).count(bundle) > 1), None)
    if twice is not None:
        raise RequestError(
            f"a benchmark of {twice} twice", "the two could not be told apart", "name it once"
        )
    if baseline is None:
        return 0
    places = [bundle.resolve() for bundle in bundles]
    if baseline in bundles:
        return list(bundles).index(baseline)
    if baseline.resolve() not in places:
        raise RequestError(
            f"ratios over {baseline} (--baseline)",
            "it is not among the bundles to measure",
            f"name one of {', '.join(map(os.fspath, bundles))}",
        )
    return places.index(baseline.resolve())


def _list_rounds(setting: BenchSetting) -> Iterator[tuple[int, bool]]:
    """Numbers from 1; those up to 0 warm up and do not count."""
    for number in range(1 - setting.warm_ups, setting.repeats + 1):
        yield number, number > 0


def _rotate(benches: list[_Bench], round_number: int) -> list[_Bench]:
    """Another one goes first in each round."""
    start = round_number % len(benches)
    return benches[start:] + benches[:start]


def _tell(
    say: Callable[[str], None], case: Case, round_number: int, bundle: Path, timing: Timing
) -> None:
    name = f"round {round_number}" if round_number > 0 else "warm-up"
    say(
        f"{case.prompt_tokens}+{case.new_tokens} tokens, {name}, {bundle}: first token"
        f" {1e3 * timing.first_seconds:.1f} ms, then {_find_rate(timing, case):.1f} tokens/s"
    )


def _find_rate(timing: Timing, case: Case) -> float:
    return (case.new_tokens - 1) * case.batch / sum(timing.step_seconds)


def _summarise(bench: _Bench, case: Case, baseline: _Bench) -> BenchRun:
    timings, opened = bench.timings[case], bench.worker.opened
    rates = [_find_rate(timing, case) for timing in timings]
    firsts = [1e3 * timing.first_seconds for timing in timings]
    steps = [1e3 * seconds for timing in timings for seconds in timing.step_seconds]
    last = timings[-1]
    spreads = {
        "tokens_per_second": measure_spread(rates),
        "time_to_first_token_ms": measure_spread(firsts),
    }
    return BenchRun(
        bundle=os.fspath(bench.bundle),
        family=bench.manifest.family,
        backend=opened.backend,
        quantized=bench.manifest.quantized,
        prompt_tokens=case.prompt_tokens,
        new_tokens=case.new_tokens,
        batch=case.batch,
        tokens_per_second=spreads["tokens_per_second"].median,
        time_to_first_token_ms=spreads["time_to_first_token_ms"].median,
        token_ms_p50=find_percentile(steps, 0.5),
        token_ms_p95=find_percentile(steps, 0.95),
        load_seconds=opened.load_seconds,
        peak_rss_bytes=max(timing.peak_rss_bytes for timing in timings),
        bytes_per_token=last.bytes_per_token,
        python_share=measure_spread([timing.python_share for timing in timings]).median,
        routing=choose_routing(bench.manifest),
        exit_shares=_find_shares(last.exit_counts),
        mean_depth=last.mean_depth,
        draft=None if bench.manifest.drafter is None else bench.draft,
        accepted_per_step=last.accepted_per_step,
        feed_forward_share=opened.feed_forward_share,
        spreads=spreads,
        ratios=None if bench is baseline else _find_ratios(bench, baseline, case),
    )


def _find_ratios(bench: _Bench, baseline: _Bench, case: Case) -> dict[str, Spread]:
    pairs = list(zip(bench.timings[case], baseline.timings[case], strict=True))
    rates = [_find_rate(own, case) / _find_rate(base, case) for own, base in pairs]
    firsts = [own.first_seconds / base.first_seconds for own, base in pairs]
    return {
        "tokens_per_second": measure_spread(rates),
        "time_to_first_token_ms": measure_spread(firsts),
    }


def _name_session_cache(setting: BenchSetting, benches: Sequence[_Bench]) -> str | None:
    """Engines are not kept there."""
    is_used = any(bench.worker.opened.backend == "onnxruntime" for bench in benches)
    folder = setting.session_cache
    return os.fspath(folder) if folder is not None and is_used else None


def _find_shares(counts: list[int] | None) -> list[float] | None:
    return None if counts is None else [count / sum(counts) for count in counts]


def _count_same(benches: list[_Bench], case: Case) -> int:
    sequences = [bench.timings[case][-1].token_ids for bench in benches]
    columns = zip(*sequences, strict=False)
    return next(
        (place for place, tokens in enumerate(columns) if len(set(tokens)) > 1),
        min(map(len, sequences)),
    )


def _read_load() -> float | None:
    """How many processes wanted a core in the last minute: numbers made beside others lie."""
    try:
        return os.getloadavg()[0]
    except OSError:
        return None


def _read_versions() -> dict[str, str]:
    versions = {}
    for name in _PACKAGES:
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            continue
    return versions
