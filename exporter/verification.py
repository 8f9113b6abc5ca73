"""Holds a new bundle to its checkpoint, before anybody gets it."""

from pathlib import Path

import msgspec

from quatrain.exporter.comparison import Check, Comparison, compare_bundle
from quatrain.exporter.comparison.cases import list_windows
from quatrain.exporter.comparison.report import describe_verdict, write_html, write_json
from quatrain.exporter.comparison.tolerances import find_kind
from quatrain.exporter.errors import ExportError
from quatrain.exporter.graph_files import WEIGHTS_FOLDER
from quatrain.exporter.progress import Progress
from quatrain.exporter.verification_record import record_verification
from quatrain.runtime.errors import RequestError
from quatrain.runtime.manifest import Manifest, Verification, load_manifest

__all__ = ["choose_length", "verify_export"]

# Enough for chunks, unequal lengths and a cache; `quatrain compare` looks at more.
_NUM_TOKENS = 32
_DECODE_STEPS = 8
# What crossing a window may cost: a few seconds, which are bytes of weights times tokens, and for
# attention the rows that see each other.
_MAX_WORK = 35 << 30
_MAX_ROWS = 1200


def verify_export(bundle: Path, checkpoint: Path, output: Path, progress: Progress) -> None:
    """Compare the graphs with the checkpoint, and add the outcome to the manifest.

    Args:
        bundle: Where the bundle is while it is written; `output` is where it shall be, for
            messages.

    Raises:
        ExportError: They differ. What was measured is left beside `output`: `OUTPUT-report.json`,
            and `OUTPUT-report.html` with plots.
    """
    length, steps = choose_length(load_manifest(bundle))
    found = compare_bundle(
        bundle, checkpoint, max_tokens=length, decode_steps=steps, progress=progress
    )
    comparison = msgspec.structs.replace(found, bundle=str(output))
    if not comparison.passed:
        raise _refuse(comparison, output)
    progress.say(f"  {describe_verdict(comparison)}")
    progress.say(f"  reference: {comparison.reference}")
    record_verification(
        bundle,
        Verification(
            status="passed",
            runners=[runner.name for runner in comparison.runners if runner.status == "compared"],
            checks=len(comparison.checks),
            logits_error=_find_logits_error(comparison.checks),
        ),
    )


def choose_length(manifest: Manifest) -> tuple[int, int]:
    """Tokens of the longest sequence, and how many of them are fed one by one: more than a few only
    where that crosses a window, in the prompt and behind it, and takes seconds."""
    weights = sum(r.bytes for r in manifest.files if r.path.startswith(f"{WEIGHTS_FOLDER}/"))
    most = min(_MAX_ROWS // manifest.cache.rows_per_token, _MAX_WORK // max(weights, 1))
    wanted = [window + _DECODE_STEPS + 1 for window in list_windows(manifest)]
    crossing = [length for length in wanted if length <= most]
    return max([_NUM_TOKENS, *crossing]), _DECODE_STEPS


def _find_logits_error(checks: list[Check]) -> float | None:
    errors = [check.value for check in checks if find_kind(check.name) == "logits"]
    return max((error for error in errors if isinstance(error, float)), default=None)


def _refuse(comparison: Comparison, output: Path) -> ExportError:
    page, document = (output.with_name(f"{output.name}-report.{ext}") for ext in ("html", "json"))
    try:
        write_html(page, comparison)
        write_json(document, comparison)
        where = f"see {page} and {document.name}"
    except RequestError as error:
        where = f"make room for a report (it could not be written: {error.found})"
    return ExportError(
        f"export {comparison.checkpoint} to {output}",
        f"the graphs are not the checkpoint: {describe_verdict(comparison)}",
        f"{where}, and tell us: no checkpoint should do that; --no-verify writes the bundle all"
        " the same",
    )
