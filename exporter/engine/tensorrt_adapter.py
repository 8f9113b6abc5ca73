"""TensorRT-RTX and classic TensorRT behind one face: the only file of the exporter to import them.

Nothing is imported before `load_tensorrt`. Both have the same Python interface but for the compute
capability, which only TensorRT-RTX can choose.
"""

import ctypes
import functools
import importlib
import importlib.util
import os
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from quatrain.exporter.engine.callbacks import make_logger
from quatrain.exporter.engine.choice import MODULES
from quatrain.exporter.engine.log import NO_DRIVER, BuildLog
from quatrain.exporter.engine.network import Creator, Network
from quatrain.exporter.errors import BuildError
from quatrain.exporter.targets import Flavour
from quatrain.plugins.registry import register

__all__ = ["ParseProblem", "TensorRT", "load_tensorrt"]

_LIBRARY = "libtensorrt_rtx.so"
_PARSER = "libtensorrt_onnxparser_rtx.so.1"


@dataclass(frozen=True, slots=True)
class ParseProblem:
    """A node the parser refuses, the functions it is nested in, and the parser's words."""

    node: str
    operator: str
    functions: tuple[str, ...]
    text: str


class TensorRT:
    """One of the two TensorRTs, loaded. Get it from `load_tensorrt`."""

    def __init__(
        self, flavour: Flavour, trt: Any, parser_folder: tempfile.TemporaryDirectory[str] | None
    ) -> None:
        self.flavour = flavour
        self.version = str(trt.__version__)
        self.log = BuildLog()
        self._trt = trt
        self._parser_folder = parser_folder
        self._logger = make_logger(trt, self.log)

    @property
    def can_parse_plugins(self) -> bool:
        """False where the parser would abort the process at the first plugin."""
        if self.flavour == "tensorrt" or self._parser_folder is not None:
            return True
        libraries = _find_rtx_libraries()
        return libraries is not None and (libraries / _LIBRARY).exists()

    @property
    def creators(self) -> list[Creator]:
        """The plugins registered now."""
        registry = self._trt.get_plugin_registry()
        return [
            Creator(creator.name, creator.plugin_version, creator.plugin_namespace)
            for creator in registry.all_creators
        ]

    def register_plugins(self) -> None:
        """Make the plugins of `quatrain.plugins` known; they stay so while the process lives."""
        try:
            register(self._trt)
        except RuntimeError as error:
            raise BuildError(
                "the plugins of quatrain", str(error), "build in a fresh process"
            ) from error

    def parse(self, path: Path, changed: bytes | None = None) -> Network | list[ParseProblem]:
        """Parse an ONNX file, with the weights beside it, into a strongly typed network.

        Args:
            changed: Another model to parse in its place, with the same weights.
        """
        trt = self._trt
        try:
            builder = trt.Builder(self._logger)
        except TypeError as error:  # how the bindings report a null pointer
            raise BuildError(
                f"a builder of {self.flavour} {self.version}",
                "; ".join(self.log.errors) or str(error),
                "run `quatrain doctor`; classic TensorRT builds only with a GPU and its driver",
            ) from error
        network = builder.create_network(1 << int(trt.NetworkDefinitionCreationFlag.STRONGLY_TYPED))
        parser = trt.OnnxParser(network, self._logger)
        where = os.fspath(path)
        if parser.parse(changed, where) if changed else parser.parse_from_file(where):
            return Network(trt, builder, network, parser)
        problems = [
            _describe_problem(parser.get_error(index)) for index in range(parser.num_errors)
        ]
        return problems or [ParseProblem("", "", (), "; ".join(self.log.errors))]


@functools.cache
def load_tensorrt(flavour: Flavour) -> TensorRT:
    """Import that TensorRT, once; raises `BuildError` if that fails or if it is too old."""
    folder = _preload_rtx_parser() if flavour == "tensorrt-rtx" else None
    try:
        trt = importlib.import_module(MODULES[flavour])
    except (ImportError, OSError) as error:
        interrupt = error.__cause__
        if interrupt is not None and not isinstance(interrupt, Exception):
            raise interrupt from None  # the bindings make an ImportError of Ctrl-C, too
        raise BuildError(
            f"{flavour} to build engines with", f"importing it failed: {error}", "install it again"
        ) from error
    if not hasattr(trt.LayerType, "KV_CACHE_UPDATE"):
        raise BuildError(
            f"caches that {flavour} updates in place",
            f"{flavour} {trt.__version__} has no layer for it",
            f"install a newer {flavour}",
        )
    return TensorRT(flavour, trt, folder)


def _preload_rtx_parser() -> tempfile.TemporaryDirectory[str] | None:
    """Load TensorRT-RTX's parser so that it finds its library; hold on to the folder it looks in.

    At the first plugin the parser opens `libtensorrt_rtx.so`, which the wheel does not have (only
    `.so.1`), and aborts the process when there is none. It looks beside itself, so it is loaded
    through a link in a folder that has a link of that name, too. None where that is too late.
    """
    libraries = _find_rtx_libraries()
    if libraries is None or _is_loaded(_PARSER):
        return None
    folder = tempfile.TemporaryDirectory(prefix="quatrain-")
    try:
        Path(folder.name, _PARSER).symlink_to(libraries / _PARSER)
        Path(folder.name, _LIBRARY).symlink_to(libraries / f"{_LIBRARY}.1")
        ctypes.CDLL(os.fspath(libraries / f"{_LIBRARY}.1"))
        ctypes.CDLL(os.path.join(folder.name, _PARSER))
    except OSError:
        folder.cleanup()
        return None
    return folder


def _is_loaded(library: str) -> bool:
    maps = Path("/proc/self/maps")
    return maps.exists() and library in maps.read_text()


def _find_rtx_libraries() -> Path | None:
    """The folder of the wheel's libraries; None where TensorRT-RTX is not from a wheel."""
    spec = importlib.util.find_spec("tensorrt_rtx_libs")
    return Path(spec.origin).parent if spec is not None and spec.origin is not None else None


def _describe_problem(error: Any) -> ParseProblem:
    functions = tuple(str(name) for name in error.local_function_stack())
    # Without a GPU every error ends with a line about the missing driver.
    lines = [line for line in error.desc().splitlines() if NO_DRIVER not in line]
    node = error.node_name() or f"number {error.node()}"
    return ParseProblem(node, error.node_operator(), functions, " ".join(" ".join(lines).split()))
