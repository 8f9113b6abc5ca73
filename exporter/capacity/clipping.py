"""Default limits that the targets of an export have room for."""

from dataclasses import dataclass

from quatrain.exporter.capacity.fit import TargetFit, fit_target, share_steps
from quatrain.exporter.capacity.model import make_planned
from quatrain.exporter.capacity.needs import count_needs
from quatrain.exporter.checkpoint.checkpoint import Checkpoint
from quatrain.exporter.errors import ExportError
from quatrain.exporter.options import ExportOptions, ExportRequest, replace_max_seq_len
from quatrain.exporter.targets import find_target

__all__ = ["Clipped", "clip_to_targets"]

# Shorter sequences than this are no use to anybody, so nobody is given them unasked.
_FEWEST_TOKENS = 128


@dataclass(frozen=True, slots=True)
class Clipped:
    """Options that fit, and what to say of it: None where nothing had to be changed."""

    options: ExportOptions
    note: str | None = None


def clip_to_targets(
    checkpoint: Checkpoint, request: ExportRequest, options: ExportOptions
) -> Clipped:
    """Shorten the sequences, if their length was left open, to what every target has room for.

    A length that was asked for stays, with a word on what does not fit: it is not known here what
    else a GPU has to do, and a bundle may be for larger ones, too.

    Raises:
        ExportError: A target has no room for the model at any length worth having.
    """
    if not options.targets:
        return Clipped(options)
    tightest = _find_tightest(checkpoint, options)
    if tightest.fits:
        return Clipped(options)
    limits, name = options.limits, f"{tightest.target} ({tightest.memory_gib} GiB)"
    if request.max_seq_len is not None:
        return Clipped(
            options,
            f"{name} has no room for {limits.max_batch} sequences of {limits.max_seq_len} tokens,"
            f" but for {tightest.max_seq_len_in_batch} each, or {tightest.max_batch} sequences",
        )
    length = tightest.max_seq_len_in_batch // 8 * 8
    if length < _FEWEST_TOKENS:
        raise ExportError(
            f"engines for {name}",
            f"no room for {limits.max_batch} sequences beside {options.dtype} weights"
            f" (`quatrain plan {checkpoint.folder}` has the sizes)",
            "ask for a smaller --max-batch or --prefill-chunk, --quantize int4, or another target",
        )
    note = f"max_seq_len is {length}, not {limits.max_seq_len}: that is what {name} has room for"
    return Clipped(replace_max_seq_len(options, length), note)


def _find_tightest(checkpoint: Checkpoint, options: ExportOptions) -> TargetFit:
    """The target with the least room, each with the largest memory it is sold with."""
    needs = count_needs(make_planned(checkpoint, options))
    shares = share_steps(needs)
    targets = [find_target(name) for name in options.targets]
    largest = [(target, max(target.memory, key=lambda memory: memory.gib)) for target in targets]
    fits = [fit_target(needs, target, memory, shares) for target, memory in largest]
    return min(fits, key=lambda fit: fit.max_seq_len_in_batch)
