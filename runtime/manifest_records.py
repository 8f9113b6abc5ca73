"""What `manifest.json` holds: the contract between exporter and runtime."""

import math
from typing import Any, Literal

import msgspec

__all__ = [
    "ITEM_BYTES",
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
]

ITEM_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2}


class _Record(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Base of every record: immutable, and strict about names and types when read."""


class TensorInfo(_Record, frozen=True, kw_only=True):
    """A graph input or output. A string in `shape` is a symbolic dimension:
    `batch` rows of the batch, `rows` tokens run in this call per batch row, `length` live cache
    length, `row_length` the same in rows, `outputs` rows per batch row whose result is wanted."""

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
    role: Literal["decoder", "segment", "head", "drafter"]
    path: str
    dtype: str
    inputs: list[TensorInfo]
    outputs: list[TensorInfo]
    deployment: GraphVariant

    @property
    def reads_whole_caches(self) -> bool:
        """Whether on a CPU its caches are as long as the mask of each call, and grow with it."""
        caches = (info.shape for info in self.inputs if info.name.startswith("key_cache."))
        return any(isinstance(shape[2], str) for shape in caches)


class CacheLayer(_Record, frozen=True, kw_only=True):
    """The key and value cache of one decoder layer: `[batch, num_heads, positions, head_dim]`.

    A position is a token, or where `unit` is `rows` one of the token's rows; streams folded into
    the heads are counted in `num_heads`. `window` is how many positions a query sees, its own
    included (None: all before it).
    """

    layer: int
    graph: str
    num_heads: int
    head_dim: int
    unit: Literal["tokens", "rows"] = "tokens"
    window: int | None = None


class CacheLayout(_Record, frozen=True, kw_only=True):
    """Static capacity in tokens, the rows of a token, and the layers in order."""

    capacity: int
    layers: list[CacheLayer]
    rows_per_token: int = 1

    def positions(self, layer: CacheLayer) -> int:
        """Positions that the cache of `layer` has room for."""
        return self.capacity * (self.rows_per_token if layer.unit == "rows" else 1)

    def bytes_per_token(self, graph: str, item_bytes: int) -> int:
        """Keys and values of one token in the layers of a graph, in numbers of so many bytes."""
        own = [layer for layer in self.layers if layer.graph == graph]
        rows = [self.rows_per_token if layer.unit == "rows" else 1 for layer in own]
        heads = sum(
            n * layer.num_heads * layer.head_dim for n, layer in zip(rows, own, strict=True)
        )
        return 2 * heads * item_bytes


class StoredTable(_Record, frozen=True, kw_only=True):
    """A matrix `[rows, columns]` in a file of the bundle: little-endian, row-major, from `offset`
    bytes on."""

    path: str
    offset: int
    dtype: Literal["float32", "float16", "bfloat16"]
    shape: list[int]

    @property
    def num_bytes(self) -> int:
        """Bytes it takes in its file."""
        return math.prod(self.shape) * ITEM_BYTES[self.dtype]


class HostEmbeddings(_Record, frozen=True, kw_only=True):
    """Embedding tables that stay on the host: one per row of a token, each `[vocab, hidden]`.

    The first graph then takes `inputs_embeds` float32 [batch, rows, len(tables) * hidden], a
    token's rows side by side, instead of `input_ids`.
    """

    tables: list[StoredTable]


class Limits(_Record, frozen=True, kw_only=True):
    """What one call may ask for: tokens per sequence, sequences, tokens per prefill call, and
    tokens an exit may leave deferred, and tokens guessed at once."""

    max_seq_len: int
    max_batch: int
    prefill_chunk: int
    max_deferred: int
    max_draft: int = 8


class ExitLayout(_Record, frozen=True, kw_only=True):
    """Which graphs run the depth axis: `segments[k]` ends at exit k, `heads[k]` makes its logits.
    `layers[k]` decoder layers have run at exit k (the final exit is listed, too)."""

    layers: list[int]
    segments: list[str]
    heads: list[str]


class DraftLayout(_Record, frozen=True, kw_only=True):
    """The graph that guesses the next state from a state and the token behind it; the decoder then
    gives its last `hidden` states beside the logits."""

    graph: str


class Quantization(_Record, frozen=True, kw_only=True):
    """Projections are signed symmetric codes; `group_size` of them that meet in one product share a
    scale. Weights that make logits have `head_bits`, with 16 they are as they were."""

    kind: Literal["int8", "int4"]
    group_size: int
    head_bits: int


class TokenizerInfo(_Record, frozen=True, kw_only=True):
    """The `tokenizers` file, and whether a text prompt begins with the BOS token."""

    path: str
    bos_token_id: int | None
    add_bos_token: bool
    chat_template: str | None = None


class Link(_Record, frozen=True, kw_only=True):
    """What identifies linked weights without reading them (`header_sha256`: of the safetensors
    header, length prefix included; of a zip's first and last MiB)."""

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
    """One engine for one target. Targets of the same SM share a file. `cache_updates` is how many
    caches, of keys and of values, it updates in place. `plugins` counts the layers of each plugin,
    named as "namespace::name:version"."""

    graph: str
    target: str
    sm: str
    flavour: Literal["tensorrt-rtx", "tensorrt"]
    version: str
    path: str
    bytes: int
    build_seconds: float
    profiles: list[Profile]
    plugins: dict[str, int]
    vendor_supported: bool
    note: str | None = None
    cache_updates: int | None = None


class SelfTest(_Record, frozen=True, kw_only=True):
    """Greedy tokens that must follow a prompt (with exits: the exit each was taken at)."""

    prompt_ids: list[int]
    expected_ids: list[int]
    expected_exits: list[int] | None = None


class Verification(_Record, frozen=True, kw_only=True):
    """Whether the graphs were held to the checkpoint before the bundle was there; those that differ
    from it never get one. `runners` name what ran them, `logits_error` is the largest difference of
    a logit, divided by the largest of the checkpoint's own. `reason` says why it was skipped."""

    status: Literal["passed", "skipped"]
    reason: str = ""
    runners: list[str] = []
    checks: int = 0
    logits_error: float | None = None


class Versions(_Record, frozen=True, kw_only=True):
    """What wrote the bundle."""

    quatrain: str
    onnx: str
    onnxruntime: str
    tensorrt: str | None = None


class Manifest(_Record, frozen=True, kw_only=True):
    """Everything the runtime knows of a bundle.

    Where a `document_token_id` begins a new document, what follows attends to nothing before it.
    """

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
    embeddings: HostEmbeddings | None = None
    drafter: DraftLayout | None = None
    quantization: Quantization | None = None
    document_token_id: int | None = None
    tokenizer: TokenizerInfo | None = None
    self_test: SelfTest | None = None
    verification: Verification | None = None

    @property
    def quantized(self) -> Literal["int8", "int4"] | None:
        """The kind of the weights' codes; None of weights that stayed as they are."""
        return None if self.quantization is None else self.quantization.kind

    def graph(self, name: str) -> Graph:
        """The graph of that name; a manifest that refers to one it lacks is refused on reading."""
        return next(graph for graph in self.graphs if graph.name == name)
