"""The modules that are whole graphs: a decoder, a segment between exits, a head."""

import onnx_ir as ir
from onnxscript import OpBuilder
from onnxscript.nn import Module, Parameter

from quatrain.exporter.checkpoint.names import EMBEDDINGS, LM_HEAD
from quatrain.exporter.decoder.dynamics import make_dynamics
from quatrain.exporter.decoder.exits import Adapter, ExitRouter
from quatrain.exporter.decoder.layers import Caches, LayerStack
from quatrain.exporter.decoder.projection import cast
from quatrain.exporter.decoder.row_views import RowViews
from quatrain.exporter.spec import DecoderSpec

__all__ = ["DecoderGraph", "DrafterGraph", "HeadGraph", "SegmentGraph"]


class DecoderGraph(Module):
    """A decoder without exits: token ids to the logits of the wanted rows."""

    def __init__(self, spec: DecoderSpec, stack: LayerStack, dtype: ir.DataType) -> None:
        super().__init__("")
        backbone = spec.backbone
        self.dtype = dtype
        self.model = stack
        self.gives_states = spec.drafter is not None
        # A tied head is the table of the first stream; one name is one parameter of the graph.
        self.shares_table = backbone.tie_word_embeddings and 0 in stack.embed.tables
        if not self.shares_table:
            name = EMBEDDINGS if backbone.tie_word_embeddings else LM_HEAD
            self.head = Parameter([backbone.vocab_size, backbone.hidden_size], name=name)

    def forward(
        self, op: OpBuilder, x: ir.Value, views: RowViews, caches: Caches
    ) -> tuple[dict[str, ir.Value], Caches]:
        """Token ids int64 [B, R], or the rows that the host looked up for them, to `logits` float32
        [B, E, V], for a drafter also the states they were made of, `hidden` [B, E, H], and the
        updated caches."""
        _, states, updated = self.model(op, x, views, caches)
        weight = self.model.embed.tables[0] if self.shares_table else self.head
        outputs = {"logits": _project_logits(op, states, weight, self.dtype)}
        if self.gives_states:
            outputs["hidden"] = _to_host(op, states, self.dtype)
        return outputs, updated


class SegmentGraph(Module):
    """The layers up to exit `index`: all rows for the next segment, and the exit's own state.

    The adapter runs here, on the wanted rows only, so that one head can serve all exits.
    """

    def __init__(
        self, spec: DecoderSpec, stack: LayerStack, index: int, dtype: ir.DataType
    ) -> None:
        super().__init__("")
        assert spec.exits is not None
        backbone, exits = spec.backbone, spec.exits
        self.index = index
        self.dtype = dtype
        self.model = stack
        self.is_final = self.model.ends_here
        if not self.is_final:
            self.exit = ExitRouter(index, exits, backbone.hidden_size, backbone.rms_norm_eps, dtype)
        size = exits.final_adapter_size if self.is_final else exits.adapter_size
        self.adapter_name = "final_adapter" if self.is_final else f"early_adapters.{index}"
        self.has_adapter = size is not None
        if size is not None:
            setattr(self, self.adapter_name, Adapter(backbone.hidden_size, size, dtype))

    def forward(
        self,
        op: OpBuilder,
        x: ir.Value,
        views: RowViews,
        caches: Caches,
    ) -> tuple[dict[str, ir.Value], Caches]:
        """Token ids int64 [B, R], or rows float32 [B, R, H] behind the first segment, to the named
        outputs, and the updated caches.

        The outputs are float32: `exit_state` [B, E, H], and before the final exit also
        `updated_hidden` [B, R, H] and `router_logprobs` [B, E, 2] (index 0 continue, 1 exit).
        """
        if self.index > 0:
            x = cast(op, x, self.dtype)
        hidden, state, updated = self.model(op, x, views, caches)
        outputs: dict[str, ir.Value] = {}
        if not self.is_final:
            outputs["updated_hidden"] = _to_host(op, hidden, self.dtype)
            state, outputs["router_logprobs"] = self.exit(op, state)
        if self.has_adapter:
            state = getattr(self, self.adapter_name)(op, state)
        outputs["exit_state"] = _to_host(op, state, self.dtype)
        return outputs, updated


class HeadGraph(Module):
    """One head's logits; `weight_name` is the checkpoint's: lm_head, embedding, an exit's own."""

    def __init__(self, spec: DecoderSpec, weight_name: str, dtype: ir.DataType) -> None:
        super().__init__("")
        self.dtype = dtype
        shape = [spec.backbone.vocab_size, spec.backbone.hidden_size]
        self.weight = Parameter(shape, name=weight_name)

    def forward(self, op: OpBuilder, exit_state: ir.Value) -> dict[str, ir.Value]:
        """States float32 [B, E, H] to logits float32 [B, E, V]."""
        states = cast(op, exit_state, self.dtype)
        return {"logits": _project_logits(op, states, self.weight, self.dtype)}


class DrafterGraph(Module):
    """One step of latent dynamics: the state and token of a position to the next state, and what
    the head says of it. Embedding and head are the decoder's own."""

    def __init__(self, spec: DecoderSpec, dtype: ir.DataType, *, host_embeddings: bool) -> None:
        super().__init__("")
        assert spec.drafter is not None
        backbone = spec.backbone
        self.dtype = dtype
        shape = [backbone.vocab_size, backbone.hidden_size]
        self.is_tied = backbone.tie_word_embeddings
        self.looks_up = not host_embeddings
        if self.looks_up or self.is_tied:
            self.table = Parameter(shape, name=EMBEDDINGS)
        if not self.is_tied:
            self.head = Parameter(shape, name=LM_HEAD)
        self.dynamics = make_dynamics(spec.drafter, backbone.hidden_size, dtype)

    def forward(self, op: OpBuilder, state: ir.Value, x: ir.Value) -> dict[str, ir.Value]:
        """States float32 [B, H], and token ids int64 [B] or their embeddings float32 [B, H], to
        `updated_state` float32 [B, H] and `logits` float32 [B, V]."""
        if self.looks_up:
            embedding = cast(op, op.Gather(self.table, x), self.dtype, self.table.dtype)
        else:
            embedding = cast(op, x, self.dtype)
        following = self.dynamics(op, cast(op, state, self.dtype), embedding)
        weight = self.table if self.is_tied else self.head
        return {
            "updated_state": _to_host(op, following, self.dtype),
            "logits": _project_logits(op, following, weight, self.dtype),
        }


def _project_logits(
    op: OpBuilder, states: ir.Value, weight: ir.Value, dtype: ir.DataType
) -> ir.Value:
    transposed = op.Transpose(cast(op, weight, dtype), perm=[1, 0])
    return _to_host(op, op.MatMul(states, transposed), dtype)


def _to_host(op: OpBuilder, value: ir.Value, dtype: ir.DataType) -> ir.Value:
    return cast(op, value, ir.DataType.FLOAT, source=dtype)
