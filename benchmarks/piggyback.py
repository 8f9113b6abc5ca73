"""Early exits with piggyback decoding against full depth and a dense twin, batch 1.

    python -m benchmarks.piggyback sample            # the trained sample models
    python -m benchmarks.piggyback wide              # 24 layers of width 768, random weights

Exits are sampled from the routers (`--routing sample`: the model as trained) or the likelier choice
(`argmax`); tokens are greedy. `wide` has no trained router: its exits are drawn with the shares
given (default: those of the trained sample under the same routing), which is what decides the work.
All variants run in turn, round by round, in one process.
"""

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from benchmarks._synthetic import write_checkpoint
from benchmarks._turns import take_turns
from quatrain.exporter.export import export_checkpoint
from quatrain.exporter.spec import Backbone, DecoderSpec, Exits, Router
from quatrain.runtime import LLM, perplexity
from quatrain.runtime.decoding.decoder import Decoder
from quatrain.runtime.decoding.piggyback import PiggybackDecoder
from quatrain.runtime.decoding.plain import PlainDecoder
from quatrain.runtime.decoding.routing import ArgmaxRouting, ForcedRouting, Routing, SampleRouting
from quatrain.runtime.session import Model, open_model

SAMPLES = Path(__file__).parents[1] / "samples" / "checkpoints"
# The 24-layer, 768-wide model of the paper's grid (arXiv 2605.13190): exits after 6, 12, 18.
WIDE = Backbone(
    model_type="llama",
    vocab_size=32000,
    hidden_size=768,
    intermediate_size=2048,
    num_hidden_layers=24,
    num_attention_heads=12,
    num_key_value_heads=12,
    head_dim=64,
    max_position_embeddings=1024,
)
WIDE_EXITS = Exits((6, 12, 18), Router(1, 768, 512), 768, 768)
ROUTINGS: dict[str, Callable[[], Routing]] = {
    "sample": lambda: SampleRouting(np.random.default_rng(1)),
    "argmax": ArgmaxRouting,
}
PROMPT = [1, 17, 203, 98, 45, 310, 77, 12]


class SharesRouting:
    """Exits drawn with given shares, whatever the router says."""

    def __init__(self, shares: Sequence[float], seed: int) -> None:
        self._rng = np.random.default_rng(seed)
        left = np.cumsum(np.array(shares)[::-1])[::-1]
        self._conditional = np.array(shares) / left

    def decide(self, exit_index: int, router_logprobs: NDArray[np.float32]) -> bool:
        """Exit here with the share's probability, given that the exit was reached."""
        return bool(self._rng.random() < self._conditional[exit_index])


def main() -> None:
    """Measure one pair of models and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", choices=("sample", "wide"))
    parser.add_argument("--routing", choices=("sample", "argmax"), default="sample")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--shares", type=float, nargs=4, help="exit shares for `wide`")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        nvium, dense = _write_bundles(args.model, Path(folder))
        if args.model == "sample":
            _print_perplexities(nvium, dense)
        models = [
            stack.enter_context(open_model(b, backend="onnxruntime", threads=args.threads))
            for b in (nvium, dense)
        ]
        make_routing = ROUTINGS[args.routing]
        if args.model == "wide":
            shares = args.shares or _measure_shares(Path(folder), make_routing())
            make_routing = partial(SharesRouting, shares, seed=1)
        _print_table(_make_variants(models, make_routing), args.tokens, args.rounds)


def _write_bundles(model: str, folder: Path) -> tuple[Path, Path]:
    if model == "sample":
        checkpoints = {"nvium": SAMPLES / "topics-nvium", "dense": SAMPLES / "topics-dense"}
    else:
        checkpoints = {"nvium": folder / "wide-nvium", "dense": folder / "wide-dense"}
        rng = np.random.default_rng(0)
        write_checkpoint(DecoderSpec(WIDE, exits=WIDE_EXITS), checkpoints["nvium"], rng)
        write_checkpoint(DecoderSpec(WIDE), checkpoints["dense"], rng)
    for name, checkpoint in checkpoints.items():
        export_checkpoint(checkpoint, folder / name, self_test=False)
    return folder / "nvium", folder / "dense"


def _print_perplexities(nvium: Path, dense: Path) -> None:
    text = (SAMPLES / "heldout.txt").read_text(encoding="utf-8")
    for name, bundle in (("N-vium", nvium), ("dense", dense)):
        with LLM(bundle, backend="onnxruntime") as llm:
            print(f"perplexity of held-out text, {name}: {perplexity(llm, text).perplexity:.3f}")


def _measure_shares(folder: Path, routing: Routing) -> list[float]:
    bundle = folder / "shares"
    export_checkpoint(SAMPLES / "topics-nvium", bundle, self_test=False)
    with open_model(bundle, backend="onnxruntime") as model:
        decoder = PiggybackDecoder(model, 1, [routing])
        exits = [index for _, index in _decode(decoder, 512)]
    return [exits.count(k) / len(exits) for k in range(4)]


def _make_variants(
    models: Sequence[Model], make_routing: Callable[[], Routing]
) -> dict[str, Callable[[], Decoder]]:
    nvium, dense = models
    return {
        "piggyback": lambda: PiggybackDecoder(nvium, 1, [make_routing()], 16),
        "full depth": lambda: PiggybackDecoder(nvium, 1, [ForcedRouting(3)], 16),
        "dense twin": lambda: PlainDecoder(dense, 1),
    }


def _print_table(variants: dict[str, Callable[[], Decoder]], tokens: int, rounds: int) -> None:
    measured = take_turns({n: partial(_measure, v, tokens) for n, v in variants.items()}, rounds)
    rates = {name: [rate for rate, _ in values] for name, values in measured.items()}
    exits = measured["piggyback"][-1][1]
    shares = [exits.count(k) / len(exits) for k in range(4)]
    depth = sum(share * (k + 1) / 4 for k, share in enumerate(shares))
    print("exit shares: " + ", ".join(f"{share:.2f}" for share in shares))
    print(
        f"mean depth {depth:.2f} of the layers: at most {1 / depth:.2f}x if nothing else took time"
    )
    medians = {name: statistics.median(values) for name, values in rates.items()}
    print(f"{'':12} {'tokens/s':>9} {'min':>8} {'max':>8}   piggyback is")
    for name, values in rates.items():
        ratio = medians["piggyback"] / medians[name]
        print(
            f"{name:12} {medians[name]:9.1f} {min(values):8.1f} {max(values):8.1f}   {ratio:.2f}x"
        )


def _measure(make_decoder: Callable[[], Decoder], tokens: int) -> tuple[float, list[int]]:
    """Tokens per second, and the exit of each."""
    decoder = make_decoder()
    start = time.perf_counter()
    exits = [index for _, index in _decode(decoder, tokens)]
    return tokens / (time.perf_counter() - start), exits


def _decode(decoder: Decoder, tokens: int) -> Iterator[tuple[int, int]]:
    """(token, exit) of each greedy step after a short prompt."""
    feed = list(PROMPT)
    for _ in range(tokens):
        step = decoder.feed([feed])
        feed = [int(step.logits[0].argmax())]
        yield feed[0], 0 if step.exits is None else int(step.exits[0])
    decoder.flush()


if __name__ == "__main__":
    main()
