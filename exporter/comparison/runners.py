"""The sides that are held to the checkpoint, and whether they are there on this machine."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import msgspec
import onnx

from quatrain.exporter.bundle import write_file
from quatrain.exporter.bundle_copy import borrow_bundle
from quatrain.exporter.comparison.kernel_mask import tell_positions
from quatrain.exporter.comparison.rounded_graph import describe_rounded, round_graph
from quatrain.exporter.comparison.tapped_graph import tap_graph
from quatrain.exporter.errors import ComparisonError
from quatrain.runtime.errors import EngineError
from quatrain.runtime.manifest import MANIFEST_NAME, Graph, Manifest, dump_manifest
from quatrain.runtime.session import Model, Session, open_model

__all__ = ["RUNNERS", "Runner", "find_runner"]

_LAYERED = ("decoder", "segment")


@dataclass(frozen=True, slots=True)
class Runner:
    """One side.

    Attributes:
        prepare: From a bundle and its manifest to a folder that `open` takes, for a while; True
            asks for graphs with taps. None: the bundle as it is.
        open: Opens that folder.
        find_absence: Why it cannot run here, or None.
        backend: What `LLM` runs the folder with; None where it cannot.
        is_deployed: It computes in the bundle's compute type, not in float32.
    """

    name: str
    prepare: Callable[[Path, Manifest, bool], AbstractContextManager[Path]]
    open: Callable[[Path], Model]
    find_absence: Callable[[Path, Manifest], str | None]
    backend: Literal["onnxruntime", "tensorrt"] | None
    is_deployed: bool
    can_be_tapped: bool = True

    def find_dtype(self, manifest: Manifest) -> str:
        """What it computes in."""
        return manifest.deployment_dtype if self.is_deployed else "float32"


def find_runner(name: str) -> Runner:
    """The runner of that name; raises `ComparisonError` where there is none."""
    if name not in RUNNERS:
        raise ComparisonError(
            f"compare with the runner {name!r}",
            "there is none of that name",
            f"choose among {', '.join(RUNNERS)}",
        )
    return RUNNERS[name]


@contextmanager
def _lend_float32(bundle: Path, manifest: Manifest, tapped: bool) -> Iterator[Path]:
    """The CPU graphs."""
    if not tapped:
        yield bundle
        return
    with _lend_edited(bundle, manifest, _load_float32, tapped) as folder:
        yield folder


@contextmanager
def _lend_deployed(bundle: Path, manifest: Manifest, tapped: bool) -> Iterator[Path]:
    """The graphs that engines are built from, rounding as an engine does."""
    with _lend_edited(bundle, manifest, _load_deployed, tapped) as folder:
        yield folder


@contextmanager
def _lend_whole(bundle: Path, manifest: Manifest, tapped: bool) -> Iterator[Path]:
    """The bundle itself: engines are what they are."""
    yield bundle


@contextmanager
def _lend_edited(
    bundle: Path,
    manifest: Manifest,
    load: Callable[[Path, Graph], tuple[onnx.ModelProto, Graph]],
    tapped: bool,
) -> Iterator[Path]:
    with borrow_bundle(bundle, manifest) as folder:
        graphs = []
        for graph in manifest.graphs:
            proto, described = load(folder, graph)
            if tapped and graph.role in _LAYERED:
                proto, infos = tap_graph(proto, manifest, graph)
                outputs = [*described.outputs, *infos]
                described = msgspec.structs.replace(described, outputs=outputs)
            # A new file under the name of the linked one, whose contents stay as they are.
            write_file(folder / described.path, proto.SerializeToString())
            graphs.append(described)
        changed = msgspec.structs.replace(manifest, graphs=graphs, engines=[])
        write_file(folder / MANIFEST_NAME, dump_manifest(changed))
        yield folder


def _load_float32(folder: Path, graph: Graph) -> tuple[onnx.ModelProto, Graph]:
    return onnx.load(folder / graph.path, load_external_data=False), graph


def _load_deployed(folder: Path, graph: Graph) -> tuple[onnx.ModelProto, Graph]:
    variant = graph.deployment
    proto = onnx.load(folder / variant.path, load_external_data=False)
    inputs, outputs = describe_rounded(variant)
    described = msgspec.structs.replace(
        graph, path=variant.path, dtype="float32", inputs=inputs, outputs=outputs
    )
    tell_positions(proto)
    return round_graph(proto), described


def _open_on_cpu(folder: Path) -> Model:
    # With quantized weights, what the graph says and not what a fast product makes of it.
    return open_model(folder, backend="onnxruntime", exact=True)


def _open_on_cuda(folder: Path) -> Model:
    from quatrain.runtime.manifest import load_manifest
    from quatrain.runtime.onnxruntime_session import CUDA_PROVIDERS, open_session

    manifest = load_manifest(folder)
    sessions: dict[str, Session] = {
        graph.name: open_session(folder, graph, None, CUDA_PROVIDERS) for graph in manifest.graphs
    }
    return Model(folder, manifest, sessions, "onnxruntime", "asked for")


def _open_engines(folder: Path) -> Model:
    return open_model(folder, backend="tensorrt")


def _is_always_there(bundle: Path, manifest: Manifest) -> str | None:
    return None


def _find_no_cuda(bundle: Path, manifest: Manifest) -> str | None:
    from quatrain.runtime.onnxruntime_session import list_providers

    if "CUDAExecutionProvider" in list_providers():
        return None
    return "this ONNX Runtime has no CUDA (the package onnxruntime-gpu has)"


def _find_no_engines(bundle: Path, manifest: Manifest) -> str | None:
    from quatrain.runtime.tensorrt_session import find_engines

    try:
        find_engines(manifest)
    except EngineError as error:
        return error.found
    return None


def _list_runners() -> Sequence[Runner]:
    return (
        Runner("fp32", _lend_float32, _open_on_cpu, _is_always_there, "onnxruntime", False),
        Runner("deployment", _lend_deployed, _open_on_cpu, _is_always_there, "onnxruntime", True),
        Runner("cuda", _lend_float32, _open_on_cuda, _find_no_cuda, None, False),
        Runner(
            "tensorrt",
            _lend_whole,
            _open_engines,
            _find_no_engines,
            "tensorrt",
            True,
            can_be_tapped=False,
        ),
    )


RUNNERS = {runner.name: runner for runner in _list_runners()}
