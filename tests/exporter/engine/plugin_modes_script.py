"""Run by test_plugin_choice.py in a process of its own, since plugins stay registered.

Parses (and in the end builds) a graph with one of our operators under several modes; prints what
came out as JSON.

    python plugin_modes_script.py BUNDLE
"""

import json
import sys
import time
from pathlib import Path
from typing import Any

from quatrain.exporter.engine.build import GraphBuild, Job
from quatrain.exporter.engine.check import count_plugins
from quatrain.exporter.engine.onnx_graph import OnnxGraph
from quatrain.exporter.engine.parse import GraphParser
from quatrain.exporter.engine.plugin_choice import parse_plugins
from quatrain.exporter.engine.tensorrt_adapter import load_tensorrt
from quatrain.exporter.errors import BuildError
from quatrain.exporter.progress import Progress
from quatrain.exporter.targets import find_target
from quatrain.plugins import compiler, plugin_state
from quatrain.plugins.compiler import CompileError
from quatrain.plugins.definition import UnsupportedError
from quatrain.plugins.exit_router.plugin import ExitRouterPlugin
from quatrain.runtime.manifest import load_manifest

GRAPH = "segment_0"


class Case:
    """One graph of a bundle under one mode."""

    def __init__(self, bundle: Path, mode: str) -> None:
        self.lines: list[str] = []
        self.bundle = bundle
        self.manifest = load_manifest(bundle)
        self.facts = (
            load_tensorrt("tensorrt-rtx"),
            bundle,
            self.manifest,
            self.manifest.graph(GRAPH),
            OnnxGraph(bundle / self.manifest.graph(GRAPH).deployment.path),
            parse_plugins([mode]),
            Progress(self.lines.append),
        )

    def parse(self) -> dict[str, Any]:
        """What became of the plugins."""
        try:
            network = GraphParser(*self.facts).run(["8.6"])
        except BuildError as error:
            return {"found": error.found, "fix": error.fix}
        return {"plugins": count_plugins(network), "said": [s for s in self.lines if "body" in s]}

    def build(self) -> dict[str, Any]:
        """What became of them in an engine, and how often its bytes have kernels."""
        job = Job("tensorrt-rtx", "8.6", (find_target("a6000"),))
        start = time.perf_counter()
        try:
            engine = GraphBuild(*self.facts).run([job], self.bundle)[0]
        except BuildError as error:
            return {"found": error.found, "fix": error.fix}
        data = engine.file.path.read_bytes()
        engine.file.path.unlink()
        entry = engine.entries[0]
        return {
            "plugins": entry.plugins,
            "kernels": data.count(b"quatrain-kernels\n"),
            "note": entry.note,
            "seconds": round(time.perf_counter() - start, 1),
        }


def refuse(self: object, inputs: object) -> None:
    raise UnsupportedError("no kernel for this today")


def fail(variants: object, sm: str) -> None:
    raise CompileError("ptxas is out of order")


def main(bundle: Path) -> None:
    cases = {}
    for mode in ("off", "on", "auto", "ExitRouter=off"):
        cases[mode] = Case(bundle, mode).parse()
    check = ExitRouterPlugin.check
    ExitRouterPlugin.check = refuse  # type: ignore[assignment,method-assign]
    cases["auto, refused"] = Case(bundle, "auto").parse()
    cases["on, refused"] = Case(bundle, "on").parse()
    ExitRouterPlugin.check = check  # type: ignore[method-assign]
    plugin_state.get_cubins = fail  # type: ignore[assignment]
    cases["on, not compiled"] = Case(bundle, "on").build()
    plugin_state.get_cubins = compiler.get_cubins
    cases["on, built"] = Case(bundle, "on").build()
    cases["off, built"] = Case(bundle, "off").build()
    print(json.dumps(cases))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
