"""Whether an export keeps a drafter: the low-level dynamics of HiLP and NextLat."""

from dataclasses import replace

from quatrain.exporter.checkpoint.checkpoint import Checkpoint
from quatrain.exporter.checkpoint.names import expected_tensors
from quatrain.exporter.errors import ExportError

__all__ = ["choose_drafter"]


def choose_drafter(checkpoint: Checkpoint, is_asked: bool) -> Checkpoint:
    """The checkpoint with its drafter if that is asked for, else without it and its tensors: a
    plain decoder.

    Raises:
        ExportError: It is asked for, and there is none.
    """
    spec = checkpoint.spec
    if is_asked and spec.drafter is None:
        absence = checkpoint.drafter_absence or "no dynamics in the checkpoint"
        raise ExportError(
            "a drafter (--drafter)",
            f"a {spec.family} decoder: {absence}",
            "leave --drafter out, or use a checkpoint with low-level dynamics (HiLP, NextLat)",
        )
    if is_asked or spec.drafter is None:
        return checkpoint
    plain = replace(spec, drafter=None)
    wanted = expected_tensors(plain)
    tensors = {name: tensor for name, tensor in checkpoint.tensors.items() if name in wanted}
    return replace(checkpoint, spec=plain, tensors=tensors)
