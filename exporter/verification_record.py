"""Writes into a bundle's manifest whether it was held to its checkpoint."""

from pathlib import Path

import msgspec

from quatrain.exporter.bundle import write_file
from quatrain.runtime.manifest import MANIFEST_NAME, Verification, dump_manifest, load_manifest

__all__ = ["record_verification", "skip_verification"]


def skip_verification(bundle: Path, reason: str) -> None:
    """Say in the manifest why the graphs were not held to the checkpoint."""
    record_verification(bundle, Verification(status="skipped", reason=reason))


def record_verification(bundle: Path, verification: Verification) -> None:
    """Add the outcome to the manifest."""
    manifest = msgspec.structs.replace(load_manifest(bundle), verification=verification)
    write_file(bundle / MANIFEST_NAME, dump_manifest(manifest))
