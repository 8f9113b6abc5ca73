"""Export the small N-vium model and generate from it: `python -m samples.quickstart`."""

import tempfile
from pathlib import Path

from quatrain.exporter import export_checkpoint
from quatrain.runtime import LLM, SamplingParams

CHECKPOINT = Path(__file__).parent / "checkpoints" / "topics-nvium"


def main() -> None:
    """Print what two prompts, a stream and a second turn give, and where the tokens came from."""
    with tempfile.TemporaryDirectory() as folder:
        report = export_checkpoint(CHECKPOINT, Path(folder) / "bundle")
        with LLM(report.bundle) as llm:
            params = SamplingParams(temperature=0.7, max_tokens=24, seed=0)
            for result in llm.generate(["The with statement", "A list is"], params):
                print(f"{result.text!r}\n  exits {result.exits}")

            print("stream:", end="")
            for delta in llm.stream("The with statement", params):
                print(delta.text, end="", flush=True)
            print()

            conversation = llm.conversation()
            conversation.send("The with statement", params)
            second = conversation.send(" A list is", params)
            print(f"second turn, over the same cache: {second.text!r}")


if __name__ == "__main__":
    main()
