"""The quatrain side of a decode benchmark (see `_worker`)."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks._worker import Generate, Generation, Mark, serve


@contextmanager
def open_quatrain(bundle: Path, threads: int) -> Iterator[Generate]:
    """Open a bundle; it is asked for a stream, so that tokens are seen as they come."""
    from quatrain.runtime import LLM, SamplingParams

    def generate(prompt: str, max_tokens: int, mark: Mark) -> Generation:
        params = SamplingParams(temperature=0, max_tokens=max_tokens, ignore_eos=True)
        token_ids: list[int] = []
        text = ""
        for delta in llm.stream(prompt, params):
            for token in delta.token_ids:
                mark()
                token_ids.append(int(token))
            text += delta.text
        stats = llm.stats
        return Generation(stats.prompt_tokens, token_ids, text, stats.python_seconds)

    with LLM(bundle, backend="onnxruntime", threads=threads) as llm:
        yield generate


if __name__ == "__main__":
    serve(open_quatrain, ["quatrain", "onnxruntime"])
