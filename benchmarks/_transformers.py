"""transformers on torch as the peer of a decode benchmark (see `_worker`)."""

from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

from benchmarks._worker import Generate, Generation, Mark, serve

__all__ = ["make_generate"]


class _Streamer:
    """What `generate` tells of its tokens: first the prompt, then one after the other."""

    def __init__(self, mark: Mark) -> None:
        self._mark = mark
        self._has_prompt = False

    def put(self, _: Any) -> None:
        """Called with the prompt, then with each token."""
        if self._has_prompt:
            self._mark()
        self._has_prompt = True

    def end(self) -> None:
        """Called at the end."""


def make_generate(model: Any, folder: Path) -> Generate:
    """Let a model that has transformers' `generate` do it, with the tokenizer in a folder."""
    tokenizer = import_module("transformers").AutoTokenizer.from_pretrained(folder)
    model.generation_config.eos_token_id = None  # as many tokens as asked for

    def generate(prompt: str, max_tokens: int, mark: Mark) -> Generation:
        inputs = tokenizer(prompt, return_tensors="pt", return_token_type_ids=False)
        length = inputs["input_ids"].shape[1]
        asked = {"max_new_tokens": max_tokens, "do_sample": False, "streamer": _Streamer(mark)}
        token_ids = model.generate(**inputs, **asked)[0, length:].tolist()
        return Generation(length, token_ids, tokenizer.decode(token_ids))

    return generate


@contextmanager
def open_transformers(checkpoint: Path, threads: int) -> Iterator[Generate]:
    """Load a checkpoint in float32, as its users do."""
    torch = import_module("torch")
    torch.set_num_threads(threads)
    loader = import_module("transformers").AutoModelForCausalLM
    yield make_generate(loader.from_pretrained(checkpoint, dtype=torch.float32), checkpoint)


if __name__ == "__main__":
    serve(open_transformers, ["transformers", "torch"])
