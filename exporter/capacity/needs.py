"""What engines of a model need of a GPU's memory, and what a step reads of it."""

from dataclasses import dataclass

from quatrain.exporter.capacity.model import PlannedModel
from quatrain.exporter.engine.profiles import LEAST_BATCH
from quatrain.exporter.graph_weights import weigh_graph
from quatrain.exporter.options import count_rotary_tokens
from quatrain.runtime.manifest import ITEM_BYTES, Limits

__all__ = ["ActivationNeeds", "GraphNeeds", "Needs", "count_needs"]


@dataclass(frozen=True, slots=True)
class GraphNeeds:
    """Of one graph, in bytes: the weights it holds, those that a call reads, how many of them a
    call of one row can leave unread (channels that are not active), and its cache of one token."""

    name: str
    role: str
    weight_bytes: int
    read_bytes: int
    inactive_bytes: int
    cache_bytes: int


@dataclass(frozen=True, slots=True)
class ActivationNeeds:
    """An upper estimate of what a prefill call keeps beside caches and weights, in bytes.

    `token_bytes` are those of the rows of a token in one layer, `mask_bytes` those of a token and
    a place in the cache, `output_bytes` the logits of a sequence.
    """

    token_bytes: int
    mask_bytes: int
    output_bytes: int

    def count(self, batch: int, chunk: int, length: int) -> int:
        """Of chunks of so many tokens of sequences of so many; engines are built for 2 at least."""
        batch = max(LEAST_BATCH, batch)
        tokens = batch * min(chunk, length)
        return tokens * (self.token_bytes + self.mask_bytes * length) + batch * self.output_bytes


@dataclass(frozen=True, slots=True)
class Needs:
    """Of a whole model in its compute type, in bytes.

    Args:
        quantized: `int8` or `int4` where projections are codes.
        weight_bytes: In engines; `host_bytes` those of embedding tables left on the host.
        positions: Tokens of a sequence that the model knows (max_position_embeddings); `longest`:
            that an export can have, the same but where a graph cannot hold so many.
        cache_bytes_per_token: Keys and values of one token of one sequence, in all layers.
        activations: What those of a call depend on; `activation_bytes` is its count at the limits.
    """

    family: str
    dtype: str
    quantized: str | None
    limits: Limits
    capacity: int
    positions: int
    longest: int
    weight_bytes: int
    host_bytes: int
    cache_bytes_per_token: int
    activation_bytes: int
    activations: ActivationNeeds
    graphs: list[GraphNeeds]


def count_needs(model: PlannedModel) -> Needs:
    """Arithmetic on the graphs' sizes."""
    manifest = model.manifest
    item_bytes = ITEM_BYTES[manifest.deployment_dtype]
    graphs = [_count_graph(model, name, item_bytes) for name in model.graphs]
    tables = manifest.embeddings.tables if manifest.embeddings else []
    activations, limits = _estimate_activations(model, item_bytes), manifest.limits
    backbone = manifest.spec["backbone"]
    positions = backbone["max_position_embeddings"]
    most = count_rotary_tokens(backbone["head_dim"], manifest.cache.rows_per_token)
    return Needs(
        family=manifest.family,
        dtype=manifest.deployment_dtype,
        quantized=manifest.quantized,
        limits=limits,
        capacity=manifest.cache.capacity,
        positions=positions,
        longest=min(positions, most),
        weight_bytes=sum(graph.weight_bytes for graph in graphs),
        host_bytes=sum(table.num_bytes for table in tables),
        cache_bytes_per_token=sum(graph.cache_bytes for graph in graphs),
        activation_bytes=activations.count(
            limits.max_batch, limits.prefill_chunk, limits.max_seq_len
        ),
        activations=activations,
        graphs=graphs,
    )


def _count_graph(model: PlannedModel, name: str, item_bytes: int) -> GraphNeeds:
    manifest = model.manifest
    weights = weigh_graph(model.graphs[name], manifest.spec["feed_forward"], item_bytes)
    return GraphNeeds(
        name=name,
        role=manifest.graph(name).role,
        weight_bytes=weights.held,
        read_bytes=weights.read,
        inactive_bytes=weights.feed_forward - weights.active,
        cache_bytes=manifest.cache.bytes_per_token(name, item_bytes),
    )


def _estimate_activations(model: PlannedModel, item_bytes: int) -> ActivationNeeds:
    """As if nothing of a layer were freed before its end, and attention kept its scores nowhere.

    TensorRT's own plan of a graph is smaller where it reuses memory, and larger where it has no
    fused attention.
    """
    manifest = model.manifest
    backbone, limits = manifest.spec["backbone"], manifest.limits
    rows_per_token = manifest.cache.rows_per_token
    heads = backbone["num_attention_heads"] + 2 * backbone["num_key_value_heads"]
    width = 4 * backbone["hidden_size"] + 3 * backbone["intermediate_size"]
    width += heads * backbone["head_dim"]
    has_rows = any(layer.unit == "rows" for layer in manifest.cache.layers)
    outputs = limits.max_draft + 1 if manifest.drafter else 1
    return ActivationNeeds(
        token_bytes=rows_per_token * width * item_bytes,
        mask_bytes=1 + rows_per_token**2 * has_rows,
        output_bytes=outputs * manifest.vocab_size * ITEM_BYTES["float32"],
    )
