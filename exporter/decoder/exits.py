"""The depth axis (N-vium): the normed state at each exit, its router, and its adapter."""

import onnx_ir as ir
from onnxscript import OpBuilder
from onnxscript.nn import Module, Parameter

from quatrain.exporter.decoder.projection import Linear, cast, project
from quatrain.exporter.spec import Exits, Router
from quatrain.plugins.exit_router.body import EXIT_ROUTER, exit_router_function

__all__ = ["Adapter", "ExitRouter"]


class Adapter(Module):
    """A residual adapter around a normed state: e + W2 SiLU(W1 e) (N-vium, `Nvium_model.py`)."""

    def __init__(self, hidden_size: int, adapter_size: int, dtype: ir.DataType) -> None:
        super().__init__()
        self.dtype = dtype
        # A torch Sequential(Linear, SiLU, Linear): the parameters are numbered 0 and 2.
        setattr(self, "0", Linear(hidden_size, adapter_size))
        setattr(self, "2", Linear(adapter_size, hidden_size))

    def forward(self, op: OpBuilder, state: ir.Value) -> ir.Value:
        """States [B, E, H] to states [B, E, H]."""
        inner = project(op, state, getattr(self, "0"), dtype=self.dtype)
        inner = op.Mul(inner, op.Sigmoid(inner))
        return op.Add(state, project(op, inner, getattr(self, "2"), dtype=self.dtype))


class _RouterBlock(Module):
    """The parameters of one MLP block of a router."""

    def __init__(self, in_features: int, router: Router) -> None:
        super().__init__()
        self.fc1 = Linear(in_features, router.intermediate_size, bias=True)
        self.fc2 = Linear(router.intermediate_size, router.hidden_size, bias=True)

    def forward(self, op: OpBuilder) -> list[ir.Value]:
        return [*self.fc1(op), *self.fc2(op)]


class _RouterBlocks(Module):
    """A chain of blocks: the first reads the hidden state, the others the router's own."""

    def __init__(self, hidden_size: int, router: Router) -> None:
        super().__init__()
        self.num_layers = router.num_layers
        for j in range(router.num_layers):
            width = hidden_size if j == 0 else router.hidden_size
            setattr(self, f"layers.{j}", _RouterBlock(width, router))

    def forward(self, op: OpBuilder) -> list[ir.Value]:
        blocks = [getattr(self, f"layers.{j}")(op) for j in range(self.num_layers)]
        return [value for block in blocks for value in block]


class _Norm(Module):
    """The weight of a norm that the operator applies itself."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.weight = Parameter([size])

    def forward(self, op: OpBuilder) -> ir.Value:
        return self.weight


class ExitRouter(Module):
    """Exit k of the model: its norm and router as one `quatrain::ExitRouter` node."""

    def __init__(
        self, index: int, exits: Exits, hidden_size: int, epsilon: float, dtype: ir.DataType
    ) -> None:
        super().__init__("")
        self.index = index
        self.router = exits.router
        self.epsilon = epsilon
        self.dtype = dtype
        setattr(self, f"early_norms.{index}", _Norm(hidden_size))
        setattr(self, f"router_layers.{index}", _RouterBlocks(hidden_size, self.router))
        setattr(self, f"router_final_norms.{index}", _Norm(self.router.hidden_size))
        setattr(self, f"router_heads.{index}", Linear(self.router.hidden_size, 2, bias=True))

    def forward(self, op: OpBuilder, wanted: ir.Value) -> tuple[ir.Value, ir.Value]:
        """States [B, E, H] to their normed form and the router's log-probabilities, float32
        [B, E, 2]: index 0 continue, 1 exit."""
        parameters = [
            getattr(self, f"early_norms.{self.index}")(op),
            *getattr(self, f"router_layers.{self.index}")(op),
            getattr(self, f"router_final_norms.{self.index}")(op),
            *getattr(self, f"router_heads.{self.index}")(op),
        ]
        opset = op.builder.graph.opset_imports[""]
        normed, log_probs = op.call(
            exit_router_function(self.router.num_layers, self.dtype, opset),
            wanted,
            *(cast(op, parameter, self.dtype) for parameter in parameters),
            epsilon=self.epsilon,
            temperature=self.router.temperature,
            **EXIT_ROUTER.plugin_attributes,
        )
        return normed, log_probs
