"""Checkpoint in, bundle out.

What runs the model or builds engines is imported by exports that are asked for it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from quatrain.exporter.bundle import (
    WeightsMode,
    record_file,
    staged_bundle,
    write_file,
)
from quatrain.exporter.checkpoint.checkpoint import Checkpoint
from quatrain.exporter.checkpoint_tokenizer import (
    check_checkpoint_tokenizer,
    copy_tokenizer,
    open_checkpoint_tokenizer,
)
from quatrain.exporter.chosen_checkpoint import open_chosen
from quatrain.exporter.description import describe_bundle
from quatrain.exporter.export_check import check_export
from quatrain.exporter.graph_files import write_graphs
from quatrain.exporter.memory import EmbeddingsPlace
from quatrain.exporter.options import ExportOptions, ExportRequest, settle_options
from quatrain.exporter.plan import ExportPlan, make_plan
from quatrain.exporter.progress import Progress, Stage
from quatrain.exporter.quantization import WeightKind
from quatrain.exporter.rare_collection import collecting_rarely
from quatrain.exporter.spec import DType
from quatrain.exporter.verification_record import skip_verification
from quatrain.exporter.weight_placement import Placed, place_checkpoint, refuse_bad_weights
from quatrain.runtime.manifest import (
    MANIFEST_NAME,
    Manifest,
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
    max_deferred: int | None = None,
    targets: Sequence[str] = (),
    self_test: bool | None = None,
    embeddings: EmbeddingsPlace = "graph",
    dense_fallback: Sequence[int] | None = None,
    drafter: bool = False,
    max_draft: int | None = None,
    verify: bool | None = None,
    quantize: WeightKind | None = None,
    group_size: int | None = None,
    head_bits: int | None = None,
) -> ExportPlan:
    """What `export_checkpoint` would do with these arguments, with nothing written."""
    request = ExportRequest(
        dtype,
        max_seq_len,
        max_batch,
        prefill_chunk,
        max_deferred,
        targets,
        self_test,
        embeddings,
        dense_fallback,
        drafter,
        max_draft,
        verify=verify,
        quantize=quantize,
        group_size=group_size,
        head_bits=head_bits,
    )
    opened = _open(checkpoint, request)
    options, note = _settle(opened, request)
    return make_plan(opened, options, note)


def export_checkpoint(
    checkpoint: Path,
    output: Path,
    *,
    dtype: DType | None = None,
    max_seq_len: int | None = None,
    max_batch: int = 4,
    prefill_chunk: int | None = None,
    max_deferred: int | None = None,
    targets: Sequence[str] = (),
    plugins: Sequence[str] | None = None,
    weights: WeightsMode | None = None,
    hash_weights: bool = False,
    self_test: bool | None = None,
    embeddings: EmbeddingsPlace = "graph",
    dense_fallback: Sequence[int] | None = None,
    drafter: bool = False,
    max_draft: int | None = None,
    verify: bool | None = None,
    quantize: WeightKind | None = None,
    group_size: int | None = None,
    head_bits: int | None = None,
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
        max_deferred: Rows an early exit may leave to be filled later (models with exits alone).
            Default: 16.
        targets: GPUs to build engines for, of `quatrain.exporter.targets.TARGETS`.
        plugins: Which of our operators the engines have as plugins (with `targets`); see
            `build_engines`. Default: auto.
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
        max_draft: Most tokens to draft at once (with `drafter`). Default: 8.
        verify: Hold the graphs to the checkpoint on a short text, on the CPU; if they differ, there
            is a report beside `output` and no bundle. Default: if the weights are at most 1 GiB.
        quantize: Round the projections to codes of 8 or 4 bits. The bundle then has a weight file
            of its own. Default: weights stay as they are.
        group_size: Weights that share a scale, 32 or 128 (with `quantize`). Default: 32.
        head_bits: Bits of a weight that makes logits: 4, 8, or 16 to leave it as it is (with
            `quantize`). Default: 8 beside int4, 16 beside int8.
        overwrite: Replace an older bundle at `output`.

    Raises:
        QuatrainError: What was asked cannot be done, or the graphs are not the checkpoint; no
            bundle is left behind.
    """
    progress = progress or Progress()
    check_export(
        checkpoint,
        output,
        targets=targets,
        plugins=plugins,
        weights=weights,
        quantize=quantize,
        overwrite=overwrite,
    )
    request = ExportRequest(
        dtype,
        max_seq_len,
        max_batch,
        prefill_chunk,
        max_deferred,
        targets,
        self_test,
        embeddings,
        dense_fallback,
        drafter,
        max_draft,
        verify=verify,
        quantize=quantize,
        group_size=group_size,
        head_bits=head_bits,
    )
    with progress.stage("read checkpoint"):
        opened = _open(checkpoint, request, progress)
        options, note = _settle(opened, request)
    warnings = _collect_warnings(opened, note, progress)
    with staged_bundle(output, overwrite=overwrite) as bundle:
        placed = place_checkpoint(bundle, opened, options, weights, hash_weights, progress)
        is_run = options.self_test or options.unverified is None
        if placed.mode == "copy" or is_run or hash_weights:
            refuse_bad_weights(opened, progress)
        _write_contents(bundle, opened, placed, options, progress)
        _try_out(bundle, checkpoint, Path(output), options, progress)
        manifest = _build_engines(bundle, options, plugins, progress)
    return ExportReport(Path(output), manifest, placed.mode, progress.stages, warnings)


def _open(path: Path, request: ExportRequest, progress: Progress | None = None) -> Checkpoint:
    opened = open_chosen(path, request, progress)
    check_checkpoint_tokenizer(opened)
    return opened


def _settle(opened: Checkpoint, request: ExportRequest) -> tuple[ExportOptions, str | None]:
    """Options that the targets have room for, and what to say of it."""
    options = settle_options(opened, request)
    if not options.targets:
        return options, None
    from quatrain.exporter.capacity.clipping import clip_to_targets

    clipped = clip_to_targets(opened, request, options)
    return clipped.options, clipped.note


def _write_contents(
    bundle: Path,
    opened: Checkpoint,
    placed: Placed,
    options: ExportOptions,
    progress: Progress,
) -> None:
    """Graphs, tokenizer and manifest."""
    records = list(placed.records)
    with progress.stage("write graphs") as stage, collecting_rarely():
        graphs = write_graphs(bundle, opened, options, placed.packed)
        paths = {path for g in graphs for path in (g.path, g.deployment.path)}
        records += [record_file(bundle, path) for path in sorted(paths)]
        stage.bytes = sum((bundle / path).stat().st_size for path in paths)
    # Whoever runs the bundle would name the copy of a damaged tokenizer, not the file itself.
    if options.self_test or options.unverified is None:
        open_checkpoint_tokenizer(opened)
    tokenizer, tokenizer_records = copy_tokenizer(bundle, opened)
    records += tokenizer_records
    manifest = describe_bundle(placed.checkpoint, options, graphs, records, tokenizer)
    write_file(bundle / MANIFEST_NAME, dump_manifest(manifest))


def _try_out(
    bundle: Path, checkpoint: Path, output: Path, options: ExportOptions, progress: Progress
) -> None:
    """Run what was written, as far as it is asked for."""
    if options.self_test:
        from quatrain.exporter.self_test import make_self_test

        with progress.stage("self-test"):
            make_self_test(bundle)
    if options.unverified is None:
        from quatrain.exporter.verification import verify_export

        verify_export(bundle, checkpoint, output, progress)
    else:
        skip_verification(bundle, options.unverified)


def _build_engines(
    bundle: Path, options: ExportOptions, plugins: Sequence[str] | None, progress: Progress
) -> Manifest:
    """Build for all targets; gives the manifest as it is in the end."""
    if options.targets:
        from quatrain.exporter.engine.engines import build_engines

        build_engines(bundle, options.targets, plugins=plugins or ("auto",), progress=progress)
    return load_manifest(bundle)


def _collect_warnings(checkpoint: Checkpoint, note: str | None, progress: Progress) -> list[str]:
    warnings = [] if note is None else [note]
    if not checkpoint.tokenizer_files:
        warnings.append("no tokenizer.json: the bundle takes and gives token ids only")
    if not checkpoint.eos_token_ids:
        warnings.append("no EOS token in config.json or generation_config.json: set stop tokens")
    if checkpoint.leftovers:
        warnings.append(f"{len(checkpoint.leftovers)} tensors left out (see `quatrain inspect`)")
    for warning in warnings:
        progress.say(f"warning: {warning}")
    return warnings
