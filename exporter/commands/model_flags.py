"""The flags that say which decoder of a checkpoint is meant, and how much it shall take at once."""

import argparse
from pathlib import Path

__all__ = ["add_limit_flags", "add_model_flags", "read_layers"]


def add_model_flags(parser: argparse.ArgumentParser) -> None:
    """Declare compute type, place of the embeddings, and the axes that may be left out."""
    parser.add_argument(
        "--dtype",
        choices=("float16", "bfloat16", "float32"),
        help="compute type of the engines (default: bfloat16 where the weights are stored so,"
        " else float16); CPUs always compute in float32",
    )
    parser.add_argument(
        "--embeddings",
        choices=("graph", "host"),
        default="graph",
        help="keep the embedding tables in the graph (the default) or in memory of the host, which"
        " then looks rows up; --dry-run shows what either takes",
    )
    parser.add_argument(
        "--dense-fallback",
        metavar="LAYERS",
        help="layers of a bank-top-k model that run all their channels: none, all, or layers"
        " counted from 0 such as 0-3,5,7-9 (default: those that the checkpoint names)",
    )
    parser.add_argument(
        "--drafter",
        action="store_true",
        help="keep the low-level dynamics of a HiLP or NextLat model, to draft with (default: drop"
        " them, which leaves a plain decoder)",
    )
    _add_quantization_flags(parser)


def add_limit_flags(group: argparse._ArgumentGroup) -> None:
    """Declare the sizes that caches and engines are made for."""
    for flag, default, text in (
        ("--max-seq-len", None, "tokens a sequence may have (default: the model's, at most 4096)"),
        ("--max-batch", 4, "sequences decoded together (default: 4)"),
        (
            "--prefill-chunk",
            None,
            "tokens of a prompt run in one call, on a CPU at most 256 (default: 512 rows)",
        ),
        (
            "--max-deferred",
            None,
            "rows an early exit may leave for later, with exits (default: 16)",
        ),
        ("--max-draft", None, "tokens drafted at once, with --drafter (default: 8)"),
    ):
        group.add_argument(flag, type=int, default=default, metavar="N", help=text)


def read_layers(checkpoint: Path, text: str | None) -> list[int] | None:
    """The layers that --dense-fallback names, which takes knowing how many there are."""
    if text is None:
        return None
    from quatrain.exporter.checkpoint import open_checkpoint
    from quatrain.exporter.expansion.layer_list import parse_layers

    depth = open_checkpoint(checkpoint).spec.backbone.num_hidden_layers
    chosen = parse_layers(text, depth, flag="--dense-fallback")
    return [layer for layer, is_chosen in enumerate(chosen) if is_chosen]


def _add_quantization_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--quantize",
        metavar="int8|int4",  # what else there is, `Scheme` refuses with the reason
        help="round the projections to codes of 8 or 4 bits (default: leave weights as they are)",
    )
    parser.add_argument(
        "--group-size",
        type=int,
        metavar="N",
        help="weights that share a scale, with --quantize: 32 (the default) or 128",
    )
    parser.add_argument(
        "--head-bits",
        type=int,
        metavar="N",
        help="bits of the weights that make the logits, with --quantize: 4, 8, or 16 to leave them"
        " as they are (default: 8 with int4, 16 with int8)",
    )
