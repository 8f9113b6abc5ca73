"""Turns one graph into engines: parse, check, build, check again."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from quatrain.exporter.engine.callbacks import BuildControl
from quatrain.exporter.engine.check import count_plugins, unused_error
from quatrain.exporter.engine.log import (
    explain_failure,
    find_unused_inputs,
    lacks_attention_kernel,
)
from quatrain.exporter.engine.network import Network
from quatrain.exporter.engine.onnx_graph import OnnxGraph
from quatrain.exporter.engine.parse import GraphParser
from quatrain.exporter.engine.plugin_choice import PluginChoice
from quatrain.exporter.engine.profiles import plan_profiles
from quatrain.exporter.engine.store import ENGINES_FOLDER, EngineFile, StagedEngine
from quatrain.exporter.engine.tensorrt_adapter import TensorRT
from quatrain.exporter.engine.worker import run_cancellable
from quatrain.exporter.errors import BuildError
from quatrain.exporter.progress import Progress, peak_rss_bytes
from quatrain.exporter.targets import Flavour, Target
from quatrain.plugins.build_target import building_for
from quatrain.plugins.problems import take_problems
from quatrain.runtime.manifest import Engine, Graph, Manifest, Profile

__all__ = ["GraphBuild", "Job"]


_DECOMPOSED = "TensorRT has no fused attention for these heads: single operations take its place"


@dataclass(frozen=True, slots=True)
class Job:
    """What to build every graph with, for which compute capability, and for whom."""

    flavour: Flavour
    sm: str
    targets: tuple[Target, ...]


@dataclass(frozen=True, slots=True)
class GraphBuild:
    """Builds the engines of one graph of a bundle."""

    trt: TensorRT
    bundle: Path
    manifest: Manifest
    graph: Graph
    onnx_graph: OnnxGraph
    choice: PluginChoice
    progress: Progress

    def run(self, jobs: Sequence[Job], staging: Path) -> list[StagedEngine]:
        """Parse once and build for each job; the network is freed on return."""
        self.trt.log.clear()
        parser = GraphParser(
            self.trt,
            self.bundle,
            self.manifest,
            self.graph,
            self.onnx_graph,
            self.choice,
            self.progress,
        )
        with self.progress.stage(f"parse {self.graph.name}"):
            network = parser.run([job.sm for job in jobs])
            self._prepare_attention(network)
        return [self._build(network, job, parser.bodies, staging) for job in jobs]

    def _prepare_attention(self, network: Network) -> None:
        if self._is_known_to_lack_attention():
            self.progress.say(f"  {_DECOMPOSED}")
            network.make_attention_decomposable()

    def _is_known_to_lack_attention(self) -> bool:
        """Where TensorRT-RTX 1.7 was seen to have no fused attention; asking for it all the same
        makes it print an internal error. Other cases are found out by trying."""
        if self.graph.role in ("head", "drafter"):
            return False
        num_heads = self.manifest.spec.get("backbone", {}).get("num_attention_heads", 0)
        return self.graph.deployment.dtype == "float32" or 0 < num_heads < 4

    def _build(
        self, network: Network, job: Job, bodies: Mapping[str, str], staging: Path
    ) -> StagedEngine:
        name = f"{self.graph.name}.{job.flavour}-sm{job.sm.replace('.', '')}.engine"
        file = EngineFile(staging / name)
        profiles = plan_profiles(self.graph, self.manifest)
        with self.progress.stage(f"build {self.graph.name} for SM {job.sm}") as stage:
            start = time.perf_counter()
            self._run_builder(network, job, profiles, file)
            seconds = time.perf_counter() - start
            stage.bytes = file.num_bytes
        entries = [
            Engine(
                graph=self.graph.name,
                target=target.name,
                sm=job.sm,
                flavour=job.flavour,
                version=self.trt.version,
                path=f"{ENGINES_FOLDER}/{name}",
                bytes=file.num_bytes,
                build_seconds=round(seconds, 3),
                profiles=profiles,
                plugins=count_plugins(network),
                vendor_supported=target.is_supported(job.flavour),
                note=_join_notes(target.support_note(job.flavour), network, bodies),
                cache_updates=len(network.cache_updates),
            )
            for target in job.targets
        ]
        return StagedEngine(file, entries)

    def _run_builder(
        self, network: Network, job: Job, profiles: list[Profile], file: EngineFile
    ) -> None:
        is_built = self._try_builder(network, job, profiles, file)
        if not is_built and lacks_attention_kernel(self.trt.log) and not file.num_bytes:
            self.progress.say(f"  {_DECOMPOSED}; building again")
            network.make_attention_decomposable()
            is_built = self._try_builder(network, job, profiles, file)
        unused = find_unused_inputs(self.trt.log.warnings)
        if unused:
            raise unused_error(self.graph, unused, self.onnx_graph)
        self._refuse_broken_plugins(job)
        if not is_built:
            cause = explain_failure(self.trt.log)
            raise BuildError(
                f"build {self.graph.deployment.path} for SM {job.sm} "
                f"with {self.trt.flavour} {self.trt.version}",
                cause.found,
                cause.fix,
            )
        if file.error is not None:
            raise file.error

    def _try_builder(
        self, network: Network, job: Job, profiles: list[Profile], file: EngineFile
    ) -> bool:
        self.trt.log.clear()
        sm = job.sm if job.flavour == "tensorrt-rtx" else None
        control = BuildControl()
        with building_for(job.sm):
            return run_cancellable(
                lambda: network.build(profiles, sm, file.write, control),
                lambda: self._cancel(control),
                lambda: self._say_alive(control),
            )

    def _refuse_broken_plugins(self, job: Job) -> None:
        """TensorRT builds on without a word where a plugin could not tell what it stores."""
        problems = take_problems()
        if problems:
            raise BuildError(
                f"the plugins of {self.graph.deployment.path} for SM {job.sm}",
                "; ".join(map(str, problems)),
                f"--plugins {problems[0].operator}=off builds the function body in its place",
            )

    def _cancel(self, control: BuildControl) -> None:
        # TensorRT looks up between its steps only; compiling a large graph is one.
        control.cancel()
        self.progress.say("  stopping: waiting for TensorRT to finish its step")

    def _say_alive(self, control: BuildControl) -> None:
        memory = peak_rss_bytes() / 1e6
        self.progress.say(f"  still building ({control.phase}), peak memory {memory:,.0f} MB")


def _join_notes(support: str | None, network: Network, bodies: Mapping[str, str]) -> str | None:
    decomposed = _DECOMPOSED if network.is_attention_decomposable else None
    notes = [f"{name} is no plugin: {reason}" for name, reason in bodies.items()]
    return "; ".join(note for note in (support, decomposed, *notes) if note) or None
