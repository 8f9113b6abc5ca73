"""The contract between exporter and runtime: what `manifest.json` holds, read and checked here."""

from pathlib import Path, PurePosixPath
from typing import Any, Literal

import msgspec

from quatrain.runtime.errors import BundleError

__all__ = [
    "MANIFEST_NAME",
    "SCHEMA_VERSION",
    "CacheLayer",
    "CacheLayout",
    "Engine",
    "ExitLayout",
    "FileRecord",
    "Graph",
    "GraphVariant",
    "Limits",
    "Link",
    "Manifest",
    "Profile",
    "SelfTest",
    "TensorInfo",
    "TokenizerInfo",
    "Versions",
    "dump_manifest",
    "load_manifest",
    "parse_manifest",
]

SCHEMA_VERSION = 1
MANIFEST_NAME = "manifest.json"


class _Record(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Base of every record: immutable, and strict about names and types when read."""


class TensorInfo(_Record, frozen=True, kw_only=True):
    """A graph input or output. A string in `shape` is a symbolic dimension:
    `batch` rows of the batch, `rows` tokens run in this call per batch row, `length` live cache
    length, `outputs` rows per batch row whose result is wanted."""

    name: str
    dtype: str
    shape: list[int | str]


class GraphVariant(_Record, frozen=True, kw_only=True):
    """One ONNX file: its path in the bundle, its compute dtype, and its signature."""

    path: str
    dtype: str
    inputs: list[TensorInfo]
    outputs: list[TensorInfo]


class Graph(_Record, frozen=True, kw_only=True):
    """A graph of the decoder. `path` is the fp32 ONNX file that ONNX Runtime runs on a CPU;
    `deployment` the one engines are built from, over the same weights."""

    name: str
    role: Literal["decoder", "segment", "head"]
    path: str
    dtype: str
    inputs: list[TensorInfo]
    outputs: list[TensorInfo]
    deployment: GraphVariant


class CacheLayer(_Record, frozen=True, kw_only=True):
    """The key and value cache of one decoder layer: `[batch, num_heads, capacity, head_dim]`."""

    layer: int
    graph: str
    num_heads: int
    head_dim: int
    unit: Literal["tokens"] = "tokens"


class CacheLayout(_Record, frozen=True, kw_only=True):
    """Static capacity in units, and the layers in order."""

    capacity: int
    layers: list[CacheLayer]


class Limits(_Record, frozen=True, kw_only=True):
    """What one call may ask for: tokens per sequence, sequences, rows per prefill call, and rows
    an exit may leave deferred."""

    max_seq_len: int
    max_batch: int
    prefill_chunk: int
    max_deferred: int


class ExitLayout(_Record, frozen=True, kw_only=True):
    """Which graphs run the depth axis: `segments[k]` ends at exit k, `heads[k]` makes its logits.
    `layers[k]` decoder layers have run at exit k (the final exit is listed, too)."""

    layers: list[int]
    segments: list[str]
    heads: list[str]


class TokenizerInfo(_Record, frozen=True, kw_only=True):
    """The `tokenizers` file, and whether a text prompt begins with the BOS token."""

    path: str
    bos_token_id: int | None
    add_bos_token: bool
    chat_template: str | None = None


class Link(_Record, frozen=True, kw_only=True):
    """What identifies linked weights without reading them (`header_sha256`: of the safetensors
    header, length prefix included)."""

    mtime_ns: int
    header_sha256: str


class FileRecord(_Record, frozen=True, kw_only=True):
    """A file of the bundle. Linked weights carry `link`, and a full hash only on request."""

    path: str
    bytes: int
    sha256: str | None = None
    link: Link | None = None


class Profile(_Record, frozen=True, kw_only=True):
    """One optimization profile: for each input its minimum, optimum and maximum shape."""

    name: Literal["prefill", "decode"]
    shapes: dict[str, list[list[int]]]


class Engine(_Record, frozen=True, kw_only=True):
    """One engine for one target. Targets of the same SM share a file."""

    graph: str
    target: str
    sm: str
    flavour: Literal["tensorrt-rtx", "tensorrt"]
    version: str
    path: str
    bytes: int
    build_seconds: float
    profiles: list[Profile]
    plugins: list[str]
    vendor_supported: bool
    note: str | None = None


class SelfTest(_Record, frozen=True, kw_only=True):
    """Greedy tokens that must follow a prompt (with exits: the exit each was taken at)."""

    prompt_ids: list[int]
    expected_ids: list[int]
    expected_exits: list[int] | None = None


class Versions(_Record, frozen=True, kw_only=True):
    """What wrote the bundle."""

    quatrain: str
    onnx: str
    onnxruntime: str
    tensorrt: str | None = None


class Manifest(_Record, frozen=True, kw_only=True):
    """Everything the runtime knows of a bundle."""

    schema_version: int
    family: str
    spec: dict[str, Any]
    vocab_size: int
    stored_dtype: str
    deployment_dtype: str
    limits: Limits
    cache: CacheLayout
    graphs: list[Graph]
    eos_token_ids: list[int]
    files: list[FileRecord]
    versions: Versions
    engines: list[Engine] = []
    exits: ExitLayout | None = None
    tokenizer: TokenizerInfo | None = None
    self_test: SelfTest | None = None

    def graph(self, name: str) -> Graph:
        """The graph of that name; a manifest that refers to one it lacks is refused on reading."""
        return next(graph for graph in self.graphs if graph.name == name)


def load_manifest(bundle: Path) -> Manifest:
    """Read `bundle/manifest.json`; `BundleError` if it is missing, altered or inconsistent."""
    path = bundle / MANIFEST_NAME
    try:
        data = path.read_bytes()
    except OSError as error:
        raise BundleError(
            f"open the bundle {bundle}",
            f"no readable {MANIFEST_NAME} ({error.strerror or error})",
            "give the folder that `quatrain export` wrote (-o)",
        ) from error
    return parse_manifest(data, str(path))


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
    problem = _find_inconsistency(manifest)
    if problem:
        raise BundleError(f"read {origin}", problem, fix)
    return manifest


def dump_manifest(manifest: Manifest) -> bytes:
    """The manifest as indented JSON."""
    return msgspec.json.format(msgspec.json.encode(manifest), indent=2) + b"\n"


def _find_inconsistency(manifest: Manifest) -> str | None:
    names = [graph.name for graph in manifest.graphs]
    known = {record.path for record in manifest.files}
    if len(set(names)) != len(names):
        return "two graphs of one name"
    for path in _all_paths(manifest):
        parts = PurePosixPath(path)
        if parts.is_absolute() or ".." in parts.parts or "\\" in path or not path:
            return f"a path that leaves the bundle: {path!r}"
        if path not in known:
            return f"no size and hash recorded for {path!r}"
    if len(known) != len(manifest.files):
        return "a file recorded twice"
    wanted = {layer.graph for layer in manifest.cache.layers}
    wanted |= {engine.graph for engine in manifest.engines}
    if manifest.exits:
        wanted |= {*manifest.exits.segments, *manifest.exits.heads}
    missing = sorted(wanted - set(names))
    if missing:
        return f"graphs that are referred to but not there: {', '.join(missing)}"
    return _find_bad_number(manifest)


def _find_bad_number(manifest: Manifest) -> str | None:
    limits = manifest.limits
    if min(limits.max_seq_len, limits.max_batch, limits.prefill_chunk, limits.max_deferred) < 1:
        return "a limit below 1"
    # A row that is finished or waiting still writes one row of padding behind its live length.
    if manifest.cache.capacity <= limits.max_seq_len:
        return (
            f"cache capacity {manifest.cache.capacity} not above max_seq_len {limits.max_seq_len}"
        )
    if not all(0 <= token < manifest.vocab_size for token in manifest.eos_token_ids):
        return f"an EOS id outside the vocabulary of {manifest.vocab_size}"
    return None


def _all_paths(manifest: Manifest) -> list[str]:
    paths = [record.path for record in manifest.files]
    for graph in manifest.graphs:
        paths += [graph.path, graph.deployment.path]
    paths += [engine.path for engine in manifest.engines]
    if manifest.tokenizer:
        paths.append(manifest.tokenizer.path)
        if manifest.tokenizer.chat_template:
            paths.append(manifest.tokenizer.chat_template)
    return paths
