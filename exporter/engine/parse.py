"""Parses one graph, once it is settled which of its operators are plugins."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from quatrain.exporter.engine.check import check_network, check_plugins, parse_error
from quatrain.exporter.engine.network import Network
from quatrain.exporter.engine.onnx_graph import OnnxGraph
from quatrain.exporter.engine.plugin_choice import PluginChoice, find_obstacle
from quatrain.exporter.engine.profiles import plan_profiles
from quatrain.exporter.engine.tensorrt_adapter import TensorRT
from quatrain.exporter.errors import BuildError
from quatrain.exporter.progress import Progress
from quatrain.plugins.operator import DOMAIN
from quatrain.plugins.registry import DEFINITIONS, take_problems
from quatrain.runtime.manifest import Graph, Manifest

__all__ = ["GraphParser"]


@dataclass(slots=True)
class GraphParser:
    """Makes networks of a graph; `bodies` has the operators that got none, and why."""

    trt: TensorRT
    bundle: Path
    manifest: Manifest
    graph: Graph
    onnx_graph: OnnxGraph
    choice: PluginChoice
    progress: Progress
    bodies: dict[str, str] = field(default_factory=dict)

    def run(self, sms: Sequence[str]) -> Network:
        """The network for these compute capabilities, checked; raises `BuildError`.

        Parses again without the plugins that turn out to have no kernel for a node.
        """
        self._settle(sms)
        while True:
            take_problems()
            check_plugins(self.trt, self.graph, self.onnx_graph)
            network = self.trt.parse(self._path, self.onnx_graph.serialize_changed())
            refusals = {problem.operator: problem.text for problem in take_problems()}
            if isinstance(network, Network):
                refusals |= network.find_plugin_refusals(self._find_longest())
            if not refusals:
                break
            for operator, reason in refusals.items():
                self._use_body(operator, reason)
        if not isinstance(network, Network):
            raise parse_error(self.trt, self.graph, network)
        check_network(network, self.trt, self.graph, self.manifest, self.onnx_graph)
        return network

    @property
    def _path(self) -> Path:
        return self.bundle / self.graph.deployment.path

    def _settle(self, sms: Sequence[str]) -> None:
        """Register the plugins, if the graph asks for any that are wanted and can be had."""
        asked = [node.creator for node in self.onnx_graph.plugin_nodes(lambda _: False)]
        ours = {c.name for c in asked if c.namespace == DOMAIN and c.name in DEFINITIONS}
        wanted = sorted(name for name in ours if self.choice.get_mode(name) != "off")
        for operator in sorted(ours.difference(wanted)):
            self.onnx_graph.use_bodies(DOMAIN, operator)
        obstacle = find_obstacle(sms, self.trt.can_parse_plugins)
        if wanted and obstacle is None:
            self.trt.register_plugins()
        for operator in wanted if obstacle else ():
            self._use_body(operator, obstacle or "")

    def _use_body(self, operator: str, reason: str) -> None:
        if self.choice.get_mode(operator) == "on" or operator in self.bodies:
            raise BuildError(
                f"the plugin {operator} in {self.graph.deployment.path}",
                reason,
                f"--plugins {operator}=off builds the function body in its place",
            )
        self.progress.say(f"  {operator}: the function body, not the plugin: {reason}")
        self.bodies[operator] = reason
        self.onnx_graph.use_bodies(DOMAIN, operator)

    def _find_longest(self) -> int:
        """The most that a dynamic dimension of an input can be."""
        dynamic = [
            (tensor.name, axis)
            for tensor in self.graph.deployment.inputs
            for axis, dim in enumerate(tensor.shape)
            if isinstance(dim, str)
        ]
        profiles = plan_profiles(self.graph, self.manifest)
        return max((p.shapes[name][2][axis] for p in profiles for name, axis in dynamic), default=1)
