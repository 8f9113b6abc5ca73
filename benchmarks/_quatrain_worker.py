"""The quatrain side of a decode benchmark (see `_worker`)."""

import argparse
from dataclasses import asdict
from pathlib import Path

from benchmarks._worker import Generation, serve


def main() -> None:
    """Load a bundle and serve."""
    parser = argparse.ArgumentParser()
    parser.add_argument("bundle", type=Path)
    parser.add_argument("--threads", type=int, default=2)
    arguments = parser.parse_args()

    from quatrain.runtime import LLM, SamplingParams

    def generate(prompt: str, max_tokens: int) -> Generation:
        params = SamplingParams(temperature=0, max_tokens=max_tokens, ignore_eos=True)
        result = llm.generate([prompt], params)[0]
        stats = llm.stats
        session_s = stats.seconds - stats.python_seconds
        token_ids = [int(token) for token in result.token_ids]
        return Generation(result.prompt_tokens, token_ids, result.text, session_s, asdict(stats))

    with LLM(arguments.bundle, backend="onnxruntime", threads=arguments.threads) as llm:
        serve(generate)


if __name__ == "__main__":
    main()
