"""Checkpoint in, bundle out."""

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from quatrain.exporter.bundle import (
    WeightsMode,
    place_weights,
    record_file,
    record_link,
    staged_bundle,
    write_file,
)
from quatrain.exporter.checkpoint.checkpoint import Checkpoint, open_checkpoint
from quatrain.exporter.checkpoint.finite import find_bad_weights
from quatrain.exporter.dense_fallback import choose_dense_fallback
from quatrain.exporter.description import describe_bundle
from quatrain.exporter.drafter_choice import choose_drafter
from quatrain.exporter.engine.engines import build_engines
from quatrain.exporter.errors import ExportError
from quatrain.exporter.graph_files import WEIGHTS_FOLDER, write_graphs
from quatrain.exporter.memory import EmbeddingsPlace
from quatrain.exporter.options import ExportRequest, settle_options
from quatrain.exporter.plan import ExportPlan, make_plan
from quatrain.exporter.progress import Progress, Stage
from quatrain.exporter.self_test import make_self_test
from quatrain.exporter.spec import DType
from quatrain.runtime.manifest import (
    MANIFEST_NAME,
    FileRecord,
    Manifest,
    TokenizerInfo,
    dump_manifest,
    load_manifest,
)

__all__ = ["ExportReport", "export_checkpoint", "plan_export"]


@dataclass(frozen=True, slots=True)
class ExportReport:
    """What an export wrote. `weights` says whether the weight files were linked or copied."""

    bundle: Path
    manifest: Manifest
    weights: WeightsMode
    stages: list[Stage]
    warnings: list[str]


def plan_export(
    checkpoint: Path,
    *,
    dtype: DType | None = None,
    max_seq_len: int | None = None,
    max_batch: int = 4,
    prefill_chunk: int | None = None,
    max_deferred: int = 16,
    targets: Sequence[str] = (),
    self_test: bool | None = None,
    embeddings: EmbeddingsPlace = "graph",
    dense_fallback: Sequence[int] | None = None,
    drafter: bool = False,
    max_draft: int = 8,
) -> ExportPlan:
    """What `export_checkpoint` would do with these arguments, with nothing written."""
    request = ExportRequest(
        dtype,
        max_seq_len,
        max_batch,
        prefill_chunk,
        max_deferred,
        tuple(targets),
        self_test,
        embeddings,
        None if dense_fallback is None else tuple(dense_fallback),
        drafter,
        max_draft,
    )
    opened = _open_chosen(checkpoint, request, Progress())
    return make_plan(opened, settle_options(opened, request))


def export_checkpoint(
    checkpoint: Path,
    output: Path,
    *,
    dtype: DType | None = None,
    max_seq_len: int | None = None,
    max_batch: int = 4,
    prefill_chunk: int | None = None,
    max_deferred: int = 16,
    targets: Sequence[str] = (),
    weights: WeightsMode | None = None,
    hash_weights: bool = False,
    self_test: bool | None = None,
    embeddings: EmbeddingsPlace = "graph",
    dense_fallback: Sequence[int] | None = None,
    drafter: bool = False,
    max_draft: int = 8,
    overwrite: bool = False,
    progress: Progress | None = None,
) -> ExportReport:
    """Turn a checkpoint folder into a bundle, whole or not at all.

    Weights that are read on the way, for a copy, a hash or the self-test, must be finite.

    Args:
        dtype: Compute type of the engines; the CPU graphs are float32. Default: bfloat16 where
            the weights are stored so, else float16.
        max_seq_len: Tokens a sequence may have. Default: the model's, at most 4096.
        max_batch: Sequences decoded together.
        prefill_chunk: Tokens of a prompt run in one call; where a token is several rows (Hidden
            Decoding), all of them. Default: as many as make 512 rows.
        max_deferred: Rows an early exit may leave to be filled later (models with exits).
        targets: GPUs to build engines for, of `quatrain.exporter.targets.TARGETS`.
        weights: `link` or `copy` the weight files. Default: link where the file system allows.
        hash_weights: Record the SHA-256 of linked weights, which reads them.
        self_test: Record the first greedy tokens after a short prompt, which runs the model on
            the CPU. Default: if the weights are at most 1 GiB.
        embeddings: Where the embedding tables are: weights in the `graph`, or on the `host`, which
            then looks the rows up and leaves that memory of the device free.
        dense_fallback: Layers, counted from 0, that run all their channels, instead of those that
            the checkpoint names (models with bank-top-k feed-forward). Default: the checkpoint's.
        drafter: Keep the low-level dynamics of HiLP and NextLat, to draft with. Without it the
            bundle is that of a plain decoder.
        max_draft: Most tokens to draft at once (with `drafter`).
        overwrite: Replace an older bundle at `output`.

    Raises:
        QuatrainError: What was asked cannot be done; nothing is left behind.
    """
    progress = progress or Progress()
    request = ExportRequest(
        dtype,
        max_seq_len,
        max_batch,
        prefill_chunk,
        max_deferred,
        tuple(targets),
        self_test,
        embeddings,
        None if dense_fallback is None else tuple(dense_fallback),
        drafter,
        max_draft,
    )
    with progress.stage("read checkpoint"):
        opened = _open_chosen(checkpoint, request, progress)
        options = settle_options(opened, request)
    warnings = _collect_warnings(opened, progress)
    with staged_bundle(output, overwrite=overwrite) as bundle:
        mode, records = _write_weights(bundle, opened, weights, hash_weights, progress)
        if mode == "copy" or options.self_test or hash_weights:
            _refuse_bad_weights(opened, progress)
        with progress.stage("write graphs") as stage:
            graphs = write_graphs(bundle, opened, options)
            paths = {path for g in graphs for path in (g.path, g.deployment.path)}
            records += [record_file(bundle, path) for path in sorted(paths)]
            stage.bytes = sum((bundle / path).stat().st_size for path in paths)
        tokenizer, tokenizer_records = _copy_tokenizer(bundle, opened)
        records += tokenizer_records
        manifest = describe_bundle(opened, options, graphs, records, tokenizer)
        write_file(bundle / MANIFEST_NAME, dump_manifest(manifest))
        if options.self_test:
            with progress.stage("self-test"):
                make_self_test(bundle)
        if options.targets:
            build_engines(bundle, options.targets, progress=progress)
        manifest = load_manifest(bundle)
    return ExportReport(Path(output), manifest, mode, progress.stages, warnings)


def _open_chosen(path: Path, request: ExportRequest, progress: Progress) -> Checkpoint:
    """The checkpoint, with those of its axes that the export is to have."""
    found = choose_dense_fallback(open_checkpoint(path), request.dense_fallback)
    opened = choose_drafter(found, request.drafter)
    if opened.spec.drafter != found.spec.drafter:
        progress.say("  its drafter is left out; --drafter keeps it")
    return opened


def _collect_warnings(checkpoint: Checkpoint, progress: Progress) -> list[str]:
    warnings = []
    if not checkpoint.tokenizer_files:
        warnings.append("no tokenizer.json: the bundle takes and gives token ids only")
    if not checkpoint.eos_token_ids:
        warnings.append("no EOS token in config.json or generation_config.json: set stop tokens")
    if checkpoint.leftovers:
        warnings.append(f"{len(checkpoint.leftovers)} tensors left out (see `quatrain inspect`)")
    for warning in warnings:
        progress.say(f"warning: {warning}")
    return warnings


def _write_weights(
    bundle: Path,
    checkpoint: Checkpoint,
    weights: WeightsMode | None,
    hash_weights: bool,
    progress: Progress,
) -> tuple[WeightsMode, list[FileRecord]]:
    records = []
    mode: WeightsMode = "link"
    with progress.stage("place weights") as stage:
        for file in checkpoint.files:
            path = f"{WEIGHTS_FOLDER}/{file.name}"
            mode, sha256 = place_weights(file, bundle / path, weights)
            progress.say(f"  {path}: {'copied' if mode == 'copy' else 'linked'}")
            if mode == "copy":
                weights = "copy"  # once one file had to be copied, so are those after it
                records.append(record_file(bundle, path, sha256))
            else:
                full_hash = record_file(bundle, path).sha256 if hash_weights else None
                records.append(record_link(bundle, path, full_hash))
        stage.bytes = sum(record.bytes for record in records) if mode == "copy" else None
    return mode, records


def _refuse_bad_weights(checkpoint: Checkpoint, progress: Progress) -> None:
    bad = find_bad_weights(checkpoint, progress)
    if bad:
        named = ", ".join(f"{w.name} ({w.num_nan} NaN, {w.num_inf} Inf)" for w in bad[:8])
        more = f" and {len(bad) - 8} more tensors" if len(bad) > 8 else ""
        raise ExportError(
            f"export {checkpoint.folder}",
            f"weights that are not finite: {named}{more}",
            "fetch the checkpoint again, or go back to one saved before training diverged",
        )


def _copy_tokenizer(
    bundle: Path, checkpoint: Checkpoint
) -> tuple[TokenizerInfo | None, list[FileRecord]]:
    if not checkpoint.tokenizer_files:
        return None, []
    (bundle / "tokenizer").mkdir()
    paths = [f"tokenizer/{file.name}" for file in checkpoint.tokenizer_files]
    for file, path in zip(checkpoint.tokenizer_files, paths, strict=True):
        shutil.copyfile(file, bundle / path)
    template = "tokenizer/chat_template.jinja"
    info = TokenizerInfo(
        path="tokenizer/tokenizer.json",
        bos_token_id=checkpoint.bos_token_id,
        add_bos_token=checkpoint.add_bos_token,
        chat_template=template if template in paths else None,
    )
    return info, [record_file(bundle, path) for path in paths]
