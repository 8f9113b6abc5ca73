"""Compares a bundle with the checkpoint it was made of, runner by runner."""

import time
from collections.abc import Sequence
from pathlib import Path

from quatrain.exporter.compared_reference import describe_reference
from quatrain.exporter.comparison.cases import make_cases
from quatrain.exporter.comparison.comparer import Comparer, Verdict
from quatrain.exporter.comparison.expectation import Expectation
from quatrain.exporter.comparison.pairing import open_pair
from quatrain.exporter.comparison.polygraphy_files import PolygraphyFolder
from quatrain.exporter.comparison.prompt import make_tokens
from quatrain.exporter.comparison.result import (
    Comparison,
    Divergence,
    LayerError,
    PlotData,
    RunnerInfo,
)
from quatrain.exporter.comparison.runners import Runner, find_runner
from quatrain.exporter.errors import ComparisonError
from quatrain.exporter.progress import Progress
from quatrain.runtime.bundle_check import verify_bundle
from quatrain.runtime.folder_kind import find_kind
from quatrain.runtime.manifest import load_manifest

__all__ = ["compare_bundle"]


def compare_bundle(
    bundle: Path,
    checkpoint: Path,
    *,
    text: Path | None = None,
    runners: Sequence[str] = ("fp32",),
    max_tokens: int = 64,
    decode_steps: int = 16,
    layers: bool = False,
    save_polygraphy: Path | None = None,
    progress: Progress | None = None,
) -> Comparison:
    """Run a bundle and its checkpoint on the same tokens, and hold the one to the other.

    The checkpoint is run by `ReferenceDecoder`, over whole sequences and without a cache; the
    bundle as it is deployed, in chunks and token by token over its caches. A quantized bundle is
    held to the checkpoint with its weights rounded alike, and on a CPU run with exact products:
    what rounding costs is not in the numbers.

    Args:
        text: UTF-8 text to take tokens from. Default: a passage that comes along.
        runners: What to hold to the reference, of `RUNNERS`: `fp32`, the CPU graphs on ONNX
            Runtime; `deployment`, the graphs of the engines' compute type, rounding as that does;
            `cuda`, the CPU graphs on ONNX Runtime for CUDA; `tensorrt`, the engines. Those that are
            not there are skipped by name, and count as nothing.
        max_tokens: Tokens of the longest sequence, at most.
        decode_steps: How many of them are fed one by one, and how many are generated.
        layers: Report how far every layer is. It is done for what fails in any case.
        save_polygraphy: A folder to write inputs and results to, in Polygraphy's own format.

    Raises:
        BundleError: It is no bundle, or not as it was written.
        CheckpointError: The other is no checkpoint.
        ComparisonError: They do not belong together; outputs differ in shape; no such runner.
        RequestError: The text is too short or cannot be read, or a number is out of range.
    """
    start = time.perf_counter()
    progress = progress or Progress()
    bundle, checkpoint = Path(bundle), Path(checkpoint)
    sides = [find_runner(name) for name in dict.fromkeys(runners)]
    saved = None if save_polygraphy is None else PolygraphyFolder(Path(save_polygraphy))
    comparer = _open(bundle, checkpoint, text, max_tokens, decode_steps, saved, progress)
    verdicts = [_compare(comparer, side, layers, progress) for side in sides]
    if saved is not None:
        saved.write()
    first = [v.bisection.find_divergence() for v in verdicts if v.bisection and v.reports_layers]
    divergences: list[Divergence] = [found for found in first if found is not None]
    return Comparison(
        bundle=str(bundle),
        checkpoint=str(checkpoint),
        reference=describe_reference(comparer.manifest.quantized),
        family=comparer.manifest.family,
        cases=[case.describe() for case in comparer.cases],
        runners=[verdict.info for verdict in verdicts],
        checks=[check for verdict in verdicts for check in verdict.checks],
        divergences=divergences,
        layer_errors=_list_layer_errors(verdicts),
        plots=_plot(verdicts),
        seconds=time.perf_counter() - start,
    )


def _open(
    bundle: Path,
    checkpoint: Path,
    text: Path | None,
    max_tokens: int,
    decode_steps: int,
    saved: PolygraphyFolder | None,
    progress: Progress,
) -> Comparer:
    """Check that both belong together, and run the reference."""
    _check_order(bundle, checkpoint)
    manifest = load_manifest(bundle)
    verify_bundle(bundle, manifest)
    opened = open_pair(bundle, manifest, checkpoint)
    table = make_tokens(bundle, manifest, text, max_tokens)
    steps = _settle_steps(decode_steps, table.shape[1])
    cases = make_cases(manifest, table.shape[1], steps)
    tokens = table[: max(len(case.rows) for case in cases)]
    with progress.stage("run the reference"):
        expectation = Expectation(opened, tokens)
    return Comparer(bundle, manifest, tokens, cases, steps, expectation, saved)


def _check_order(bundle: Path, checkpoint: Path) -> None:
    if (find_kind(bundle), find_kind(checkpoint)) == ("checkpoint", "bundle"):
        raise ComparisonError(
            f"compare the bundle {bundle} with the checkpoint {checkpoint}",
            "the first is the checkpoint, and the second the bundle",
            "give them the other way round",
        )


def _settle_steps(decode_steps: int, num_tokens: int) -> int:
    if type(decode_steps) is not int or decode_steps < 0:
        raise ComparisonError(
            f"{decode_steps!r} tokens fed one by one",
            "that is no number of steps",
            "give 0 or more",
        )
    return min(decode_steps, num_tokens - 1)


def _compare(comparer: Comparer, runner: Runner, layers: bool, progress: Progress) -> Verdict:
    absence = runner.find_absence(comparer.bundle, comparer.manifest)
    if absence is not None:
        progress.say(f"{runner.name}: skipped, {absence}")
        dtype = runner.find_dtype(comparer.manifest)
        return Verdict(RunnerInfo(runner.name, "skipped", absence, dtype))
    with progress.stage(f"compare {runner.name}"):
        return comparer.compare(runner, layers)


def _list_layer_errors(verdicts: list[Verdict]) -> list[LayerError]:
    return [
        error
        for verdict in verdicts
        if verdict.bisection is not None and verdict.reports_layers
        for error in verdict.bisection.list_layer_errors()
    ]


def _plot(verdicts: list[Verdict]) -> PlotData:
    judges = {verdict.info.name: verdict.judge for verdict in verdicts if verdict.judge is not None}
    shares: dict[str, list[float]] = {}
    for name, judge in judges.items():
        if judge.meaning.has_exits:
            shares["reference"], shares[name] = judge.meaning.average_exit_shares()
    overlap = {v.info.name: v.bisection.measure_overlap() for v in verdicts if v.bisection}
    return PlotData(
        kl_per_position={name: judge.meaning.longest_kl for name, judge in judges.items()},
        logit_differences={
            name: judge.meaning.differences
            for name, judge in judges.items()
            if judge.meaning.differences is not None
        },
        exit_shares=shares,
        selection_overlap={name: layers for name, layers in overlap.items() if layers},
        flips=[flip for verdict in verdicts for flip in verdict.flips],
    )
