"""onnxruntime-genai as the peer of a decode benchmark: its export and its worker."""

import argparse
import json
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks._worker import Generation, serve

__all__ = ["export_genai"]


def export_genai(checkpoint: Path, out: Path, precision: str = "fp32") -> Path:
    """Build the peer's own CPU model of a checkpoint, fp32 or int4; reuse a finished one."""
    if (out / "genai_config.json").is_file():
        return out
    out.parent.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=out.parent, prefix=f".{out.name}-") as temporary:
        staging, cache = Path(temporary) / out.name, Path(temporary) / "cache"
        _run_builder(["-m", checkpoint, "-o", staging, "-p", precision, "-e", "cpu", "-c", cache])
        staging.rename(out)
    return out


def _run_builder(options: list[str | Path]) -> None:
    command = [sys.executable, "-m", "onnxruntime_genai.models.builder", *map(str, options)]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode:
        raise RuntimeError(f"the peer's model builder failed:\n{done.stdout[-4000:]}")


def load_model(folder: Path, threads: int) -> Any:
    """Load a model folder with its own settings, the thread count aside."""
    og = import_module("onnxruntime_genai")
    options = {"intra_op_num_threads": threads}
    config = og.Config(str(folder))
    config.overlay(json.dumps({"model": {"decoder": {"session_options": options}}}))
    return og.Model(config)


def generate_greedy(model: Any, tokenizer: Any, prompt: str, max_tokens: int) -> Generation:
    """Run the documented generation loop."""
    og = import_module("onnxruntime_genai")
    prompt_ids = tokenizer.encode(prompt)
    params = og.GeneratorParams(model)
    params.set_search_options(max_length=len(prompt_ids) + max_tokens, do_sample=False)
    generator = og.Generator(model, params)
    generator.append_tokens(prompt_ids)
    token_ids: list[int] = []
    while not generator.is_done():
        generator.generate_next_token()
        token_ids.append(int(generator.get_next_tokens()[0]))
    return Generation(len(prompt_ids), token_ids, tokenizer.decode(token_ids))


def main() -> None:
    """Load a model folder and serve."""
    parser = argparse.ArgumentParser()
    parser.add_argument("model", type=Path)
    parser.add_argument("--threads", type=int, default=2)
    arguments = parser.parse_args()

    og = import_module("onnxruntime_genai")
    model = load_model(arguments.model, arguments.threads)
    tokenizer = og.Tokenizer(model)
    serve(lambda prompt, max_tokens: generate_greedy(model, tokenizer, prompt, max_tokens))


if __name__ == "__main__":
    main()
