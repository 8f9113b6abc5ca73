"""One loaded bundle that is timed: a prompt in, the seconds of every step out."""

import time
from dataclasses import dataclass, replace
from pathlib import Path

from quatrain.exporter.bench.setting import BenchSetting, Case, choose_draft, choose_routing
from quatrain.exporter.bench.step_clock import StepClock
from quatrain.exporter.bench.traffic import Traffic, can_read_graphs, open_traffic
from quatrain.exporter.progress import peak_rss_bytes
from quatrain.runtime.draft_setting import settle_draft
from quatrain.runtime.manifest import load_manifest
from quatrain.runtime.sampling import SamplingParams
from quatrain.runtime.serving import ServedModel
from quatrain.runtime.session import open_model
from quatrain.runtime.tokenizer import open_tokenizer

__all__ = ["Opened", "Runner", "Timing"]


_WAKING_TOKENS = 8


@dataclass(frozen=True, slots=True)
class Opened:
    """What opening took and gave."""

    load_seconds: float
    backend: str
    feed_forward_share: float | None


@dataclass(frozen=True, slots=True)
class Timing:
    """One call: seconds to the first token and of each step behind it, and what it counted.

    `StepClock` says what a step is.
    """

    first_seconds: float
    step_seconds: list[float]
    token_ids: list[int]
    """Of the first sequence."""
    python_share: float
    exit_counts: list[int] | None
    mean_depth: float | None
    accepted_per_step: float | None
    bytes_per_token: int | None
    peak_rss_bytes: int


class Runner:
    """A bundle in this process."""

    def __init__(self, bundle: Path, setting: BenchSetting) -> None:
        start = time.perf_counter()
        manifest = load_manifest(bundle)
        tokenizer = open_tokenizer(bundle, manifest)
        model = open_model(
            bundle,
            backend=setting.backend,
            threads=setting.threads,
            session_cache=setting.session_cache,
        )
        draft = settle_draft(choose_draft(setting, manifest), manifest)
        self._served = ServedModel(model, tokenizer, manifest.limits.max_deferred, draft)
        seconds = time.perf_counter() - start
        self._traffic: Traffic | None = None
        if model.backend == "onnxruntime" and can_read_graphs():
            is_gathered = setting.batch == 1 and draft is None
            self._traffic = open_traffic(bundle, manifest, is_gathered=is_gathered)
        share = self._traffic.feed_forward_share if self._traffic else None
        self.opened = Opened(seconds, model.backend, share)

    def read_prompts(self, text: str, case: Case) -> list[list[int]]:
        """A prompt for each sequence: stretches of the text, over again where it is too short.

        Where it has no tokens or there is no tokenizer, all ids in turn.
        """
        served = self._served
        vocab_size = served.manifest.vocab_size
        ids = served.tokenizer.encode(text) if served.tokenizer else []
        ids = ids or list(range(vocab_size))
        needed = case.prompt_tokens * case.batch
        ids = (ids * (needed // len(ids) + 1))[:needed]
        starts = range(0, needed, case.prompt_tokens)
        return [ids[start : start + case.prompt_tokens] for start in starts]

    def time(self, text: str, case: Case) -> Timing:
        """Run a case once.

        A short run that does not count goes before it: a process that waited for its turn has gone
        cold, its threads asleep and its pages reclaimed, which says nothing of the bundle.
        """
        self._run(text, replace(case, new_tokens=min(case.new_tokens, _WAKING_TOKENS)))
        return self._run(text, case)

    def _run(self, text: str, case: Case) -> Timing:
        served = self._served
        params = SamplingParams(
            temperature=0.0,
            max_tokens=case.new_tokens,
            ignore_eos=True,
            seed=0,
            routing=choose_routing(served.manifest),
        )
        requests = [served.reader.read(ids, params) for ids in self.read_prompts(text, case)]
        pairs = [served.start_row(request) for request in requests]
        meter = served.make_meter()
        calls: dict[str, int] = {}
        clock = StepClock(served.model.count_calls)
        for _ in served.run(pairs, meter):
            clock.tick()
            calls = calls or served.model.count_calls()
        seconds = clock.seconds
        rows = [row for row, _ in pairs]
        stats = served.make_stats(rows, meter)
        traffic = self._traffic
        made = {name: n - calls[name] for name, n in served.model.count_calls().items()}
        return Timing(
            first_seconds=seconds[0],
            step_seconds=seconds[1:],
            token_ids=rows[0].token_ids,
            python_share=stats.python_share,
            exit_counts=stats.exit_counts,
            mean_depth=stats.mean_depth,
            accepted_per_step=None if stats.draft is None else stats.draft.accepted_per_step,
            bytes_per_token=None if traffic is None else traffic.count_bytes_per_token(made, case),
            peak_rss_bytes=peak_rss_bytes(),
        )
