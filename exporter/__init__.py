"""Turns checkpoints into bundles: ONNX graphs, weights and TensorRT engines.

Names are imported on first use, so that importing this loads none of the heavy packages.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from quatrain.exporter.bench import BenchReport, BenchSetting, bench_bundles
    from quatrain.exporter.capacity import CapacityPlan, plan_capacity
    from quatrain.exporter.checkpoint import Checkpoint, open_checkpoint
    from quatrain.exporter.diagnosis import ActivationReport, diagnose_activations
    from quatrain.exporter.doctor import DoctorReport, examine_machine
    from quatrain.exporter.drafting import DrafterReport, fit_drafter
    from quatrain.exporter.engine.engines import build_engines
    from quatrain.exporter.errors import BuildError, CheckpointError, ExportError, SpecError
    from quatrain.exporter.expansion import ExpansionReport, expand_checkpoint
    from quatrain.exporter.export import ExportReport, export_checkpoint, plan_export
    from quatrain.exporter.inspection import Inspection, inspect_checkpoint
    from quatrain.exporter.plan import ExportPlan
    from quatrain.exporter.progress import Progress
    from quatrain.exporter.sparsification import SparsifyReport, sparsify_checkpoint
    from quatrain.exporter.spec import DecoderSpec
    from quatrain.exporter.targets import TARGETS, Target, find_target

__all__ = [
    "TARGETS",
    "ActivationReport",
    "BenchReport",
    "BenchSetting",
    "BuildError",
    "CapacityPlan",
    "Checkpoint",
    "CheckpointError",
    "DecoderSpec",
    "DoctorReport",
    "DrafterReport",
    "ExpansionReport",
    "ExportError",
    "ExportPlan",
    "ExportReport",
    "Inspection",
    "Progress",
    "SparsifyReport",
    "SpecError",
    "Target",
    "bench_bundles",
    "build_engines",
    "diagnose_activations",
    "examine_machine",
    "expand_checkpoint",
    "export_checkpoint",
    "find_target",
    "fit_drafter",
    "inspect_checkpoint",
    "open_checkpoint",
    "plan_capacity",
    "plan_export",
    "sparsify_checkpoint",
]

_MODULES = {
    "bench": ("BenchReport", "BenchSetting", "bench_bundles"),
    "capacity": ("CapacityPlan", "plan_capacity"),
    "checkpoint": ("Checkpoint", "open_checkpoint"),
    "diagnosis": ("ActivationReport", "diagnose_activations"),
    "doctor": ("DoctorReport", "examine_machine"),
    "drafting": ("DrafterReport", "fit_drafter"),
    "engine.engines": ("build_engines",),
    "errors": ("BuildError", "CheckpointError", "ExportError", "SpecError"),
    "expansion": ("ExpansionReport", "expand_checkpoint"),
    "export": ("ExportReport", "export_checkpoint", "plan_export"),
    "inspection": ("Inspection", "inspect_checkpoint"),
    "plan": ("ExportPlan",),
    "progress": ("Progress",),
    "sparsification": ("SparsifyReport", "sparsify_checkpoint"),
    "spec": ("DecoderSpec",),
    "targets": ("TARGETS", "Target", "find_target"),
}


def __getattr__(name: str) -> object:
    for module, names in _MODULES.items():
        if name in names:
            return getattr(import_module(f"quatrain.exporter.{module}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
