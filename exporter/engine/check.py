"""Is the network that was parsed the graph that was asked for? Nothing may be lost in silence."""

from collections import Counter

from quatrain.exporter.engine.network import Network, TensorFacts
from quatrain.exporter.engine.onnx_graph import OnnxGraph, PluginNode
from quatrain.exporter.engine.tensorrt_adapter import ParseProblem, TensorRT
from quatrain.exporter.errors import BuildError
from quatrain.plugins.operator import DOMAIN
from quatrain.runtime.manifest import Graph, Manifest, TensorInfo

__all__ = ["check_network", "check_plugins", "count_plugins", "parse_error", "unused_error"]


def check_plugins(trt: TensorRT, graph: Graph, onnx_graph: OnnxGraph) -> None:
    """Before the parse: refuse plugins that would abort it, or that are registered otherwise."""
    registered = trt.creators
    names = {creator.name: creator for creator in registered}
    for node in onnx_graph.plugin_nodes(lambda creator: creator in registered):
        near = names.get(node.creator.name)
        if near is not None and node.creator not in registered:
            raise BuildError(
                f"the plugin {node.creator} for node {node.name} of {graph.deployment.path}",
                f"registered is {near}; TensorRT would build the function body without a word",
                "register the plugin under the version and namespace that the graph asks for"
                + (
                    f": install the quatrain that exported it, or build its function body: "
                    f"--plugins {node.creator.name}=off"
                    if node.creator.namespace == DOMAIN
                    else ""
                ),
            )
        if near is not None and not trt.can_parse_plugins:
            raise BuildError(
                f"the plugin {node.creator} in {graph.deployment.path}",
                "tensorrt_rtx was imported before quatrain could load its parser, "
                "which would abort the process at the first plugin",
                "build in a fresh process, or call load_tensorrt of "
                "quatrain.exporter.engine.tensorrt_adapter first",
            )


def check_network(
    network: Network, trt: TensorRT, graph: Graph, manifest: Manifest, onnx_graph: OnnxGraph
) -> None:
    """Raise `BuildError` unless signature, inputs, caches and plugins came out as asked for."""
    _check_signature(graph, network)
    if network.unused_inputs:
        raise unused_error(graph, network.unused_inputs, onnx_graph)
    _check_caches(graph, manifest, network, onnx_graph)
    registered = trt.creators
    nodes = onnx_graph.plugin_nodes(lambda creator: creator in registered)
    _check_plugin_layers(graph, [n for n in nodes if n.creator in registered], network)


def parse_error(trt: TensorRT, graph: Graph, problems: list[ParseProblem]) -> BuildError:
    """What the parser could not do, node by node."""
    lines = []
    for problem in problems[:8]:
        within = f", inside {' in '.join(problem.functions)}" if problem.functions else ""
        lines.append(f"node {problem.node} ({problem.operator}{within}): {problem.text}")
    fix = "rewrite the node with operators that TensorRT has"
    if any("plugin" in problem.text.lower() for problem in problems):
        known = ", ".join(map(str, sorted(trt.creators)))
        fix += f", or register a plugin for it (registered: {known})"
    return BuildError(
        f"parse {graph.deployment.path} with {trt.flavour} {trt.version}", "; ".join(lines), fix
    )


def unused_error(graph: Graph, inputs: list[str], onnx_graph: OnnxGraph) -> BuildError:
    """TensorRT dropped an input, so that it would compute something else."""
    found = "; ".join(
        f"input {name} is unused: TensorRT ignores it at "
        f"{', '.join(onnx_graph.find_readers(name)) or 'no node: nothing reads it'}"
        for name in inputs
    )
    return BuildError(
        f"an engine of {graph.deployment.path} that uses all its inputs",
        found,
        "express it with operators that TensorRT honours",
    )


def _check_signature(graph: Graph, network: Network) -> None:
    variant = graph.deployment
    for kind, wanted, found in (
        ("inputs", variant.inputs, network.inputs),
        ("outputs", variant.outputs, network.outputs),
    ):
        missing = sorted({t.name for t in wanted} ^ {t.name for t in found})
        by_name = {tensor.name: tensor for tensor in found}
        wrong = missing or [t.name for t in wanted if not _is_same(t, by_name[t.name])]
        if wrong:
            shown = ", ".join(f"{name} = {by_name.get(name, 'absent')}" for name in wrong)
            raise BuildError(
                f"the {kind} of {variant.path} as the manifest describes them",
                f"the graph differs at {shown}",
                "export the checkpoint again",
            )


def _is_same(info: TensorInfo, facts: TensorFacts) -> bool:
    # A symbolic dimension has to be dynamic; one that TensorRT could not infer may be.
    return (
        info.dtype == facts.dtype
        and len(info.shape) == len(facts.shape)
        and all(found in (-1, dim) for dim, found in zip(info.shape, facts.shape, strict=True))
    )


def _check_caches(
    graph: Graph, manifest: Manifest, network: Network, onnx_graph: OnnxGraph
) -> None:
    updates = network.cache_updates
    for layer in manifest.cache.layers:
        if layer.graph != graph.name:
            continue
        for name in (f"key_cache.{layer.layer}", f"value_cache.{layer.layer}"):
            if updates.get(name) == f"updated_{name}":
                continue
            readers = ", ".join(onnx_graph.find_readers(name)) or "no node"
            raise BuildError(
                f"{name} of {graph.deployment.path} updated in place",
                f"of {len(updates)} KV_CACHE_UPDATE layers none turns it into updated_{name}; "
                f"it is read by {readers}",
                "update it with TensorScatter (axis -2, linear), from graph input to graph output",
            )


def _check_plugin_layers(graph: Graph, wanted: list[PluginNode], network: Network) -> None:
    found = [layer.creator for layer in network.plugins]
    for node in wanted:
        if node.creator in found:
            found.remove(node.creator)
            continue
        same = [n.name for n in wanted if n.creator == node.creator]
        built = {layer.node for layer in network.plugins}
        lost = [name for name in same if name not in built] or same
        raise BuildError(
            f"the plugin {node.creator} for {len(same)} nodes of {graph.deployment.path}",
            f"it is registered, but TensorRT built something else at {', '.join(lost)}",
            "give the operator a name that no ONNX operator has",
        )


def count_plugins(network: Network) -> dict[str, int]:
    """How many layers there are of each plugin, named as "namespace::name:version"."""
    return dict(sorted(Counter(str(layer.creator) for layer in network.plugins).items()))
