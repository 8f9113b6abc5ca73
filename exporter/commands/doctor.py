"""`quatrain doctor`: what can be built and run here, and whether a bundle is sound."""

import argparse
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from quatrain.exporter.commands.console import Console
from quatrain.exporter.commands.file_facts import describe_comparisons
from quatrain.exporter.commands.llm_flags import add_backend_flags
from quatrain.exporter.commands.path_flag import read_path
from quatrain.exporter.commands.verification_facts import describe_verification
from quatrain.exporter.table import Table, format_bytes, format_facts

if TYPE_CHECKING:
    from quatrain.exporter.doctor import DoctorReport, TargetReport
    from quatrain.runtime.manifest import Verification

__all__ = ["BundleCheck", "configure_parser", "run"]


@dataclass(frozen=True, slots=True)
class BundleCheck:
    """What was looked at in a sound bundle; `self_test` is False where it records none.

    `files_compared` says by path what a file was held to. `verification` is what the export
    recorded of its comparison with the checkpoint, `reference` what that was held to; `quantized`
    is the kind of its codes, None without.
    """

    path: Path
    files: int
    bytes: int
    self_test: bool
    files_compared: dict[str, str]
    quantized: str | None
    verification: "Verification | None"
    reference: str


def configure_parser(parser: argparse.ArgumentParser) -> None:
    """Declare the flags."""
    parser.add_argument(
        "bundle",
        metavar="BUNDLE",
        type=read_path,
        nargs="?",
        help="also compare every file of this bundle with the size and SHA-256 in its manifest,"
        " and run its self-test; linked weights have a SHA-256 there if they were exported with"
        " --hash-weights, and are held to size, time and header otherwise",
    )
    add_backend_flags(parser)


def run(args: argparse.Namespace, console: Console) -> int:
    """Examine the machine, then the bundle; a bundle that is not sound raises."""
    from quatrain.exporter.doctor import examine_machine

    report = examine_machine()
    console.show(_format_machine(report))
    console.show_table(_make_package_table(report))
    console.show_table(_make_target_table(report))
    check = None if args.bundle is None else _check_bundle(args, console)
    if check is not None:
        outcome = "its self-test passes" if check.self_test else "it records no self-test"
        console.show(
            f"{check.path}: {check.files} files ({format_bytes(check.bytes)}) are as recorded,"
            f" and {outcome}\n"
            f"{describe_comparisons(check.files_compared)}\n"
            "compared with its checkpoint:"
            f" {describe_verification(check.verification, check.quantized)}"
        )
    console.set_document(asdict(report) | {"bundle": check})
    return 0


def _check_bundle(args: argparse.Namespace, console: Console) -> BundleCheck:
    from quatrain.exporter.compared_reference import describe_reference
    from quatrain.runtime import LLM, verify_bundle
    from quatrain.runtime.bundle_check import list_comparisons
    from quatrain.runtime.manifest import load_manifest

    manifest = load_manifest(args.bundle)
    progress = console.make_progress()
    with progress.stage("compare files with the manifest") as stage:
        verify_bundle(args.bundle, manifest, full=True)
        stage.bytes = sum(record.bytes for record in manifest.files)
    has_test = manifest.self_test is not None
    with (
        progress.stage("run the self-test" if has_test else "open the bundle"),
        LLM(
            args.bundle,
            backend=args.backend,
            threads=args.threads,
            self_test=has_test,
            verify=False,
        ),
    ):
        pass
    return BundleCheck(
        path=args.bundle,
        files=len(manifest.files),
        bytes=stage.bytes,
        self_test=has_test,
        files_compared=list_comparisons(manifest),
        quantized=manifest.quantized,
        verification=manifest.verification,
        reference=describe_reference(manifest.quantized),
    )


def _format_machine(report: "DoctorReport") -> str:
    local = report.local
    facts = {"Python": report.python, "platform": report.platform}
    for gpu in local.gpus:
        facts[f"GPU {gpu.index}"] = f"{gpu.name}, SM {gpu.sm}, {format_bytes(gpu.memory_bytes)}"
    if local.driver or local.cuda:
        facts["driver"] = f"{local.driver or 'unknown'}, CUDA {local.cuda or 'unknown'}"
    if local.problem:
        facts["GPU"] = local.problem
    return format_facts("Machine", facts)


def _make_package_table(report: "DoctorReport") -> Table:
    rows = [(p.name, p.version or "not installed", p.used_for) for p in report.packages]
    return Table("Packages", ("package", "version", "for"), rows)


def _make_target_table(report: "DoctorReport") -> Table:
    rows = [
        (target.name, target.title, target.sm, _describe_build(target), _describe_run(target))
        for target in report.targets
    ]
    notes = [f"{target.name}: {target.note}" for target in report.targets if target.note]
    columns = ("target", "GPU", "SM", "build here", "run here")
    return Table("Targets", columns, rows, notes=notes)


def _describe_build(target: "TargetReport") -> str:
    if target.can_build:
        return f"yes, with {target.flavour}"
    return f"no: {target.build_problem} ({target.build_fix})"


def _describe_run(target: "TargetReport") -> str:
    return "yes" if target.can_run else f"no: {target.run_problem}"
