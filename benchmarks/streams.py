"""What streams cost: SmolLM2-135M expanded to n = 2, 4, 8 against its own n = 1, batch 1.

    python -m benchmarks.streams prefill      # 512 tokens: 4 cross-stream layers, and all of them
    python -m benchmarks.streams decode       # tokens/s behind 128 and 2048 tokens

`quatrain expand` gives the weights (every table a copy of the first, which changes no work).
Factorized models keep layers 7, 15, 23 and 29 of 30 cross-stream. All variants run in turn, round
by round, in one process; ratios are taken within a round. The checkpoint is the one that
`python -m samples.smollm2` converts.
"""

import argparse
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import numpy as np

from benchmarks._turns import print_seconds
from quatrain.exporter import expand_checkpoint, export_checkpoint
from quatrain.runtime.decoding.plain import PlainDecoder
from quatrain.runtime.session import Model, open_model
from samples.smollm2 import DEFAULT_FOLDER, convert_smollm2

FACTORIZED = "0-6,8-14,16-22,24-28"
_RATIO = "time(n) / time(1)"
Variants = Mapping[str, Callable[[], float]]


def main() -> None:
    """Measure one of the two and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=("prefill", "decode"))
    parser.add_argument("--checkpoint", type=Path, help="default: converts SmolLM2-135M")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--streams", type=int, nargs="+", default=[2, 4, 8])
    args = parser.parse_args()
    checkpoint = args.checkpoint or convert_smollm2(DEFAULT_FOLDER / "checkpoint")
    with tempfile.TemporaryDirectory(dir=checkpoint.parent) as folder, ExitStack() as stack:
        models = {
            name: stack.enter_context(
                open_model(bundle, backend="onnxruntime", threads=args.threads)
            )
            for name, bundle in _write_bundles(checkpoint, Path(folder), args).items()
        }
        if args.what == "prefill":
            variants = _prefill_variants(models, 512)
            print_seconds(variants, args.rounds, "seconds for 512 tokens", _RATIO)
            return
        for context in (128, 2048):
            variants = _decode_variants(models, context)
            what = f"seconds a token behind {context} tokens"
            print_seconds(variants, args.rounds, what, _RATIO)


def _write_bundles(checkpoint: Path, folder: Path, args: argparse.Namespace) -> dict[str, Path]:
    """Bundles by name, the first of them n = 1."""
    patterns = {"4 cross": FACTORIZED, "all cross": "none"}
    if args.what == "decode":
        del patterns["all cross"]
    checkpoints = {"n=1": checkpoint}
    for kind, intra_stream in patterns.items():
        for n in args.streams:
            name = f"n={n}, {kind}"
            checkpoints[name] = folder / f"checkpoint-{name}"
            expand_checkpoint(
                checkpoint, checkpoints[name], num_streams=n, intra_stream=intra_stream
            )
    bundles = {}
    for name, source in checkpoints.items():
        bundles[name] = folder / f"bundle-{name}"
        export_checkpoint(source, bundles[name], max_seq_len=2304, max_batch=1, self_test=False)
    return bundles


def _prefill_variants(models: Mapping[str, Model], tokens: int) -> Variants:
    return {name: partial(_time_prefill, model, tokens) for name, model in models.items()}


def _time_prefill(model: Model, tokens: int) -> float:
    decoder = PlainDecoder(model, 1)
    prompt = _draw_prompt(model, tokens)
    start = time.perf_counter()
    decoder.feed([prompt])
    return time.perf_counter() - start


def _decode_variants(models: Mapping[str, Model], context: int) -> Variants:
    """Decoders that have read their context; each call goes 16 tokens on."""
    variants = {}
    for name, model in models.items():
        decoder = PlainDecoder(model, 1)
        decoder.feed([_draw_prompt(model, context)])
        variants[name] = partial(_time_decode, decoder, 16)
    return variants


def _time_decode(decoder: PlainDecoder, tokens: int) -> float:
    decoder.feed([[11]])  # the others have had the caches since its last turn
    start = time.perf_counter()
    for token in range(tokens):
        decoder.feed([[100 + token]])
    return (time.perf_counter() - start) / tokens


def _draw_prompt(model: Model, tokens: int) -> list[int]:
    rng = np.random.default_rng(tokens)
    ids: list[int] = rng.integers(0, model.manifest.vocab_size, tokens).tolist()
    return ids


if __name__ == "__main__":
    main()
