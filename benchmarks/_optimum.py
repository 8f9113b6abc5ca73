"""optimum-onnx as the peer of a decode benchmark: transformers' `generate` on ONNX Runtime."""

from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path

from benchmarks._transformers import make_generate
from benchmarks._worker import Generate, serve


@contextmanager
def open_optimum(folder: Path, threads: int) -> Iterator[Generate]:
    """Load what it exported, with its own settings, the thread count aside."""
    import_module("torch").set_num_threads(threads)
    options = import_module("onnxruntime").SessionOptions()
    options.intra_op_num_threads = threads
    loader = import_module("optimum.onnxruntime").ORTModelForCausalLM
    yield make_generate(loader.from_pretrained(folder, session_options=options), folder)


if __name__ == "__main__":
    serve(open_optimum, ["optimum-onnx", "onnxruntime", "transformers"])
