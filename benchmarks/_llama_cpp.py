"""llama.cpp as the peer of a decode benchmark (see `_worker`), by its Python bindings."""

from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path

from benchmarks._worker import Generate, Generation, Mark, serve


@contextmanager
def open_llama_cpp(folder: Path, threads: int) -> Iterator[Generate]:
    """Load `model.gguf` for as long a context as the model has, with its own settings."""
    loader = import_module("llama_cpp").Llama
    counts = {"n_threads": threads, "n_threads_batch": threads}
    model = loader(str(folder / "model.gguf"), n_ctx=0, verbose=False, **counts)

    def generate(prompt: str, max_tokens: int, mark: Mark) -> Generation:
        prompt_ids = model.tokenize(prompt.encode(), add_bos=False, special=True)
        model.reset()  # or it keeps what the last prompt has in common with this one
        token_ids: list[int] = []
        for token in model.generate(prompt_ids, temp=0.0):
            mark()
            token_ids.append(int(token))
            if len(token_ids) == max_tokens:
                break
        text = model.detokenize(token_ids).decode(errors="replace")
        return Generation(len(prompt_ids), token_ids, text)

    yield generate


if __name__ == "__main__":
    serve(open_llama_cpp, ["llama-cpp-python"])
