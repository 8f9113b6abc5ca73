"""onnxruntime-genai as the peer of a decode benchmark (see `_worker`)."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path

from benchmarks._worker import Generate, Generation, Mark, serve


@contextmanager
def open_genai(folder: Path, threads: int) -> Iterator[Generate]:
    """Load what its model builder wrote, with its own settings, the thread count aside."""
    og = import_module("onnxruntime_genai")
    options = {"intra_op_num_threads": threads}
    config = og.Config(str(folder))
    config.overlay(json.dumps({"model": {"decoder": {"session_options": options}}}))
    model = og.Model(config)
    tokenizer = og.Tokenizer(model)

    def generate(prompt: str, max_tokens: int, mark: Mark) -> Generation:
        """The documented generation loop."""
        prompt_ids = tokenizer.encode(prompt)
        params = og.GeneratorParams(model)
        params.set_search_options(max_length=len(prompt_ids) + max_tokens, do_sample=False)
        generator = og.Generator(model, params)
        generator.append_tokens(prompt_ids)
        token_ids: list[int] = []
        while not generator.is_done():
            generator.generate_next_token()
            token_ids.append(int(generator.get_next_tokens()[0]))
            mark()
        return Generation(len(prompt_ids), token_ids, tokenizer.decode(token_ids))

    yield generate


if __name__ == "__main__":
    serve(open_genai, ["onnxruntime-genai", "onnxruntime"])
