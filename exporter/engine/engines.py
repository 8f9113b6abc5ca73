"""Builds TensorRT engines into a bundle: one file a graph and compute capability."""

import errno
import shutil
import threading
from collections.abc import Sequence
from pathlib import Path

import msgspec

from quatrain.exporter.engine.build import GraphBuild, Job
from quatrain.exporter.engine.choice import require_builder
from quatrain.exporter.engine.onnx_graph import OnnxGraph
from quatrain.exporter.engine.plugin_choice import PluginChoice, parse_plugins
from quatrain.exporter.engine.store import (
    StagedEngine,
    commit_engines,
    disk_error,
    staged_engines,
)
from quatrain.exporter.engine.tensorrt_adapter import load_tensorrt
from quatrain.exporter.errors import BuildError
from quatrain.exporter.local_gpu import find_gpus
from quatrain.exporter.progress import Progress
from quatrain.exporter.targets import Flavour, Target, find_target
from quatrain.runtime.bundle_check import verify_bundle
from quatrain.runtime.manifest import Engine, Graph, Manifest, load_manifest

__all__ = ["build_engines"]

# Of the threads of a process: they have one log of TensorRT, and one GPU that plugins compile for.
_ONE_AT_A_TIME = threading.Lock()

# An engine holds the weights once, and its kernels for each profile. Measured: 1.0 to 1.2 times
# the weights, and 5 MB where these are a few kB.
_ENGINE_BYTES_PER_WEIGHT_BYTE = 1.3
_ENGINE_FIXED_BYTES = 16_000_000
# Peak memory of a build over the weights of its graph, measured: 3.1 (float16), 2.6 (float32).
_MEMORY_PER_WEIGHT_BYTE = 3.2


def build_engines(
    bundle: Path,
    targets: Sequence[str],
    *,
    flavour: Flavour | None = None,
    plugins: Sequence[str] = ("auto",),
    log_file: Path | None = None,
    progress: Progress | None = None,
) -> list[Engine]:
    """Build an engine of every graph for every target and add them to the bundle, all or none.

    Targets of one compute capability share their files. Engines that the bundle has for these
    targets are replaced.

    Args:
        targets: Names of `quatrain.exporter.targets.TARGETS`.
        flavour: The TensorRT to build with. Default: TensorRT-RTX, which needs no GPU; classic
            TensorRT where it is installed on the very GPU and the vendor supports nothing else.
        plugins: Modes of our operators: `auto` (a plugin where there is a kernel for it, else the
            function body in the graph, which is said), `on` (a plugin, or an error) or `off` (the
            body); `OPERATOR=MODE` for one of them.
        log_file: Where to append what TensorRT says.

    Raises:
        QuatrainError: It cannot be built, or TensorRT would build something else than the graph;
            the bundle is as it was. So it is after Ctrl-C.
    """
    progress = progress or Progress()
    choice = parse_plugins(plugins)
    jobs = _plan_jobs(targets, flavour)
    manifest = load_manifest(bundle)
    onnx_graphs = [_open_graph(bundle, graph) for graph in manifest.graphs]
    _name_absent_operators(choice, onnx_graphs, progress)
    _verify_sources(bundle, manifest)
    needed = _check_space(bundle, onnx_graphs, len(jobs))
    _warn_of_memory(onnx_graphs, progress)
    built: list[StagedEngine] = []
    with staged_engines(bundle, needed) as staging, _ONE_AT_A_TIME:
        for name in dict.fromkeys(job.flavour for job in jobs):
            trt = load_tensorrt(name)
            own_jobs = [job for job in jobs if job.flavour == name]
            with trt.log.record_to(log_file):
                for graph, onnx_graph in zip(manifest.graphs, onnx_graphs, strict=True):
                    build = GraphBuild(trt, bundle, manifest, graph, onnx_graph, choice, progress)
                    built += build.run(own_jobs, staging)
        return commit_engines(bundle, manifest, built)


def _plan_jobs(names: Sequence[str], flavour: Flavour | None) -> list[Job]:
    targets = [find_target(name) for name in dict.fromkeys(names)]
    if not targets:
        raise BuildError("build engines", "no target was given", "name at least one target")
    local = find_gpus()
    grouped: dict[tuple[Flavour, str], list[Target]] = {}
    for target in targets:
        key = require_builder(target, local, flavour), target.sm
        grouped.setdefault(key, []).append(target)
    return [Job(name, sm, tuple(group)) for (name, sm), group in grouped.items()]


def _open_graph(bundle: Path, graph: Graph) -> OnnxGraph:
    path = bundle / graph.deployment.path
    if not path.is_file():
        raise BuildError(
            f"an engine of the graph {graph.name}",
            f"the bundle has no {graph.deployment.path}",
            "export the checkpoint again",
        )
    onnx_graph = OnnxGraph(path)
    missing = onnx_graph.find_missing_weights()
    if missing:
        raise BuildError(
            f"the weights of {graph.deployment.path}",
            f"missing from the bundle, or cut short: {', '.join(missing)}",
            "export the checkpoint again",
        )
    return onnx_graph


def _name_absent_operators(
    choice: PluginChoice, graphs: list[OnnxGraph], progress: Progress
) -> None:
    """Tell of modes for operators that no graph has, and go on: who exports many models gives
    modes for all of them."""
    nodes = [node for graph in graphs for node in graph.plugin_nodes(lambda creator: False)]
    absent = sorted(choice.by_operator.keys() - {node.creator.name for node in nodes})
    for name in absent:
        mode = choice.by_operator[name]
        progress.say(f"--plugins {name}={mode} changes nothing: this model has no such operator")


def _verify_sources(bundle: Path, manifest: Manifest) -> None:
    """Hold what engines are made of to the manifest; old engines may differ: they give way."""
    engines = {engine.path for engine in manifest.engines}
    sources = [record for record in manifest.files if record.path not in engines]
    verify_bundle(bundle, msgspec.structs.replace(manifest, files=sources))


def _check_space(bundle: Path, graphs: list[OnnxGraph], num_jobs: int) -> int:
    """The bytes the engines will take, about; raises `BuildError` where fewer are free."""
    weight_bytes = sum(graph.weight_bytes for graph in graphs)
    each = int(weight_bytes * _ENGINE_BYTES_PER_WEIGHT_BYTE) + len(graphs) * _ENGINE_FIXED_BYTES
    needed = each * num_jobs
    if shutil.disk_usage(bundle).free < needed:
        raise disk_error(bundle, OSError(errno.ENOSPC, "too little space"), needed)
    return needed


def _warn_of_memory(graphs: list[OnnxGraph], progress: Progress) -> None:
    """A process out of memory is killed without a word, so the word has to come before."""
    needed = max((graph.weight_bytes for graph in graphs), default=0)
    needed = int(needed * _MEMORY_PER_WEIGHT_BYTE)
    available = _read_available_memory()
    if available is not None and available < needed:
        progress.say(
            f"warning: the largest graph takes about {needed / 1e9:.1f} GB of memory to build; "
            f"{available / 1e9:.1f} GB are available"
        )


def _read_available_memory() -> int | None:
    """In bytes, as Linux tells it in kB; None elsewhere."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return None
    return next(
        (int(line.split()[1]) * 1024 for line in lines if line[:12] == "MemAvailable"), None
    )
