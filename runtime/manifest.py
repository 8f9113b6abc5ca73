"""Reads and writes `manifest.json`; everything there is to import of a manifest is here."""

from pathlib import Path
from typing import Any

import msgspec

from quatrain.runtime.errors import BundleError, fix_reading
from quatrain.runtime.folder_kind import MANIFEST_NAME, find_kind
from quatrain.runtime.manifest_check import find_inconsistency
from quatrain.runtime.manifest_records import (
    ITEM_BYTES,
    CacheLayer,
    CacheLayout,
    DraftLayout,
    Engine,
    ExitLayout,
    FileRecord,
    Graph,
    GraphVariant,
    HostEmbeddings,
    Limits,
    Link,
    Manifest,
    Profile,
    Quantization,
    SelfTest,
    StoredTable,
    TensorInfo,
    TokenizerInfo,
    Verification,
    Versions,
)

__all__ = [
    "ITEM_BYTES",
    "MANIFEST_NAME",
    "SCHEMA_VERSION",
    "CacheLayer",
    "CacheLayout",
    "DraftLayout",
    "Engine",
    "ExitLayout",
    "FileRecord",
    "Graph",
    "GraphVariant",
    "HostEmbeddings",
    "Limits",
    "Link",
    "Manifest",
    "Profile",
    "Quantization",
    "SelfTest",
    "StoredTable",
    "TensorInfo",
    "TokenizerInfo",
    "Verification",
    "Versions",
    "dump_manifest",
    "load_manifest",
    "parse_manifest",
]

SCHEMA_VERSION = 1


def load_manifest(bundle: Path) -> Manifest:
    """Read `bundle/manifest.json`; `BundleError` if it is missing, altered or inconsistent."""
    path = bundle / MANIFEST_NAME
    try:
        return parse_manifest(path.read_bytes(), str(path))
    except (OSError, BundleError) as error:
        if find_kind(bundle) == "checkpoint":
            raise BundleError(
                f"open the bundle {bundle}",
                "it is a checkpoint",
                f"export it first (quatrain export {bundle} -o BUNDLE), and give the bundle",
            ) from error
        if isinstance(error, BundleError):
            raise
        raise BundleError(
            f"open the bundle {bundle}",
            f"no readable {MANIFEST_NAME} ({error.strerror or error})",
            fix_reading(error, "give the folder that `quatrain export` wrote (-o)"),
        ) from error


def parse_manifest(data: bytes, origin: str) -> Manifest:
    """Decode and check a manifest; `origin` names it in errors."""
    fix = "export the checkpoint again; a manifest is not meant to be edited by hand"
    try:
        version = msgspec.json.decode(data, type=dict[str, Any]).get("schema_version")
        if version != SCHEMA_VERSION:
            raise BundleError(
                f"read {origin}",
                f"schema version {version!r}; this quatrain reads {SCHEMA_VERSION}",
                "export the checkpoint again with this version of quatrain",
            )
        manifest = msgspec.json.decode(data, type=Manifest)
    except msgspec.DecodeError as error:
        raise BundleError(f"read {origin}", str(error), fix) from error
    problem = find_inconsistency(manifest)
    if problem:
        raise BundleError(f"read {origin}", problem, fix)
    return manifest


def dump_manifest(manifest: Manifest) -> bytes:
    """The manifest as indented JSON."""
    return msgspec.json.format(msgspec.json.encode(manifest), indent=2) + b"\n"
