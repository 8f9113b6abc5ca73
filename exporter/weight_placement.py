"""Puts a checkpoint's weights into a bundle: its own files, or a packed one."""

from dataclasses import dataclass
from pathlib import Path

from quatrain.exporter.bundle import WeightsMode, place_weights, record_file, record_link
from quatrain.exporter.checkpoint.checkpoint import Checkpoint
from quatrain.exporter.checkpoint.finite import find_bad_weights
from quatrain.exporter.errors import ExportError
from quatrain.exporter.graph_files import WEIGHTS_FOLDER
from quatrain.exporter.options import ExportOptions
from quatrain.exporter.progress import Progress
from quatrain.exporter.quantization import PackedWeights, Scheme, pack_weights
from quatrain.runtime.manifest import FileRecord

__all__ = ["Placed", "place_checkpoint", "refuse_bad_weights"]


@dataclass(frozen=True, slots=True)
class Placed:
    """Weights in a bundle. `checkpoint` is what its files hold; with `packed` some of the tensors
    are codes there."""

    mode: WeightsMode
    records: list[FileRecord]
    checkpoint: Checkpoint
    packed: PackedWeights | None = None


def place_checkpoint(
    bundle: Path,
    checkpoint: Checkpoint,
    options: ExportOptions,
    weights: WeightsMode | None,
    hash_weights: bool,
    progress: Progress,
) -> Placed:
    """Link or copy the weight files, or write the packed one (whatever `weights` says)."""
    if options.scheme is not None:
        packed = _pack(bundle, checkpoint, options, options.scheme, progress)
        files = [f"{WEIGHTS_FOLDER}/{file.name}" for file in packed.checkpoint.files]
        records = [record_file(bundle, file) for file in files]
        return Placed("copy", records, packed.checkpoint, packed)
    mode, records = _place(bundle, checkpoint, weights, hash_weights, progress)
    return Placed(mode, records, checkpoint)


def refuse_bad_weights(checkpoint: Checkpoint, progress: Progress) -> None:
    """Raise `ExportError` for weights that are not finite; reads all of them."""
    bad = find_bad_weights(checkpoint, progress)
    if bad:
        named = ", ".join(f"{w.name} ({w.num_nan} NaN, {w.num_inf} Inf)" for w in bad[:8])
        more = f" and {len(bad) - 8} more tensors" if len(bad) > 8 else ""
        raise ExportError(
            f"export {checkpoint.folder}",
            f"weights that are not finite: {named}{more}",
            "fetch the checkpoint again, or go back to one saved before training diverged",
        )


def _place(
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


def _pack(
    bundle: Path,
    checkpoint: Checkpoint,
    options: ExportOptions,
    scheme: Scheme,
    progress: Progress,
) -> PackedWeights:
    path = bundle / WEIGHTS_FOLDER / f"model-{scheme.kind}.safetensors"
    path.parent.mkdir()
    with progress.stage("quantize weights") as stage:
        packed = pack_weights(checkpoint, scheme, path, options.dtype)
        stage.bytes = path.stat().st_size
    return packed
