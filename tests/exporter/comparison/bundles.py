"""Bundles of the golden and sample checkpoints, exported as they are needed."""

from pathlib import Path
from typing import Any

from quatrain.exporter import export_checkpoint

GOLDEN = (
    "bank_topk",
    "hidden_decoding",
    "hidden_decoding_mirror",
    "hidden_decoding_sfa",
    "hilp",
    "nextlat",
    "nvium",
)
SAMPLES = ("bank-topk", "dense", "hidden-decoding", "hilp", "nextlat", "nvium")
DRAFTING = ("hilp", "nextlat")


def find_checkpoint(root: Path, name: str) -> Path:
    """The folder of a golden checkpoint, or of a sample."""
    if name in GOLDEN and not name.startswith("topics"):
        return root / "tests" / "golden" / name / "checkpoint"
    return root / "samples" / "checkpoints" / name


def export(root: Path, name: str, bundle: Path, **options: Any) -> Path:
    """A bundle of a checkpoint; its drafter is kept unless that is said."""
    options.setdefault("drafter", name.removeprefix("topics-") in DRAFTING)
    export_checkpoint(
        find_checkpoint(root, name),
        bundle,
        weights="copy",
        self_test=False,
        verify=False,
        **options,
    )
    return bundle
