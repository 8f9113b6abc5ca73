"""A bank-top-k feed-forward network on a CPU: chosen channels gathered, against masked and dense.

    python -m benchmarks.bank_topk

Batch 1, a model of SmolLM2-135M's shape with random weights, 16 of every 64 channels, predictors of
rank 64. All variants run in turn, round by round, in one process; ratios are taken within a round.
`masked` is the function body that engines get (all channels computed, the others set to zero),
`dense` the same model without predictors.
"""

import argparse
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import onnx_ir as ir

from benchmarks._synthetic import SMOLLM2, write_checkpoint
from benchmarks._turns import print_seconds
from quatrain.exporter.decoder import feed_forward
from quatrain.exporter.export import export_checkpoint, plan_export
from quatrain.exporter.spec import BankTopK, DecoderSpec
from quatrain.plugins.bank_topk_ffn import body
from quatrain.runtime.decoding.plain import PlainDecoder
from quatrain.runtime.session import Model, open_model


def main() -> None:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rank", type=int, default=64)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=9)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        models = {
            variant: stack.enter_context(
                open_model(bundle, backend="onnxruntime", threads=args.threads)
            )
            for variant, bundle in _write_bundles(Path(name), args.rank).items()
        }
        for what, tokens in (("decode, s a token", 1), ("prompt of 256, s", 256)):
            variants = {name: partial(_measure, model, tokens) for name, model in models.items()}
            print_seconds(variants, args.rounds, what, "gathered is faster by")


def _write_bundles(folder: Path, rank: int) -> dict[str, Path]:
    sparse = DecoderSpec(SMOLLM2, feed_forward=BankTopK(64, 16, rank))
    rng = np.random.default_rng(0)
    write_checkpoint(DecoderSpec(SMOLLM2), folder / "dense-checkpoint", rng)
    write_checkpoint(sparse, folder / "sparse-checkpoint", rng)
    bill = plan_export(folder / "sparse-checkpoint").feed_forward_bill
    if bill is not None:
        share = bill.row_bytes / bill.dense_bytes
        print(f"a gathered step reads {share:.3f} of the feed-forward bytes, predictors included")
    bundles = {}
    for name in ("gathered", "masked", "dense"):
        bundles[name] = folder / name
        source = folder / ("dense-checkpoint" if name == "dense" else "sparse-checkpoint")
        with _masked_bodies() if name == "masked" else ExitStack():
            export_checkpoint(source, bundles[name], max_seq_len=512, self_test=False)
    return bundles


@contextmanager
def _masked_bodies() -> Iterator[None]:
    """Graphs for a CPU with the function body of engines."""
    make_function = body.bank_topk_feed_forward_function

    def make_masked(*arguments: Any, gathers: bool) -> ir.Function:
        return make_function(*arguments, gathers=False)

    with mock.patch.object(feed_forward, "bank_topk_feed_forward_function", make_masked):
        yield


def _measure(model: Model, tokens: int) -> float:
    """Of a prompt, or of each of 16 tokens behind one of 128."""
    decoder = PlainDecoder(model, 1)
    rng = np.random.default_rng(tokens)
    if tokens == 1:
        decoder.feed([rng.integers(0, SMOLLM2.vocab_size, 128).tolist()])
    steps = 16 if tokens == 1 else 1
    start = time.perf_counter()
    for _ in range(steps):
        decoder.feed([rng.integers(0, SMOLLM2.vocab_size, tokens).tolist()])
    return (time.perf_counter() - start) / steps


if __name__ == "__main__":
    main()
