"""Flags of commands are the parameters of the functions behind them, with their defaults."""

from collections.abc import Callable
from inspect import Parameter, signature

import pytest

from quatrain.exporter.cli import main, make_parser
from quatrain.exporter.engine.engines import build_engines
from quatrain.exporter.export import export_checkpoint
from quatrain.exporter.inspection import inspect_checkpoint
from quatrain.exporter.targets import TARGETS


def read_flags(*words: str) -> dict[str, object]:
    """What a command passes on when nothing is asked but what it needs."""
    flags = vars(make_parser(words).parse_args(words))
    return {name: flags[name] for name in flags if name not in {"json", "run", "command"}}


def read_parameters(function: Callable[..., object]) -> dict[str, object]:
    parameters = signature(function).parameters.values()
    return {p.name: None if p.default is Parameter.empty else p.default for p in parameters}


def plain(value: object) -> object:
    return list(value) if isinstance(value, tuple) else value


def test_export_flags_are_the_parameters_of_export_checkpoint() -> None:
    flags = read_flags("export", "checkpoint", "-o", "bundle")
    parameters = read_parameters(export_checkpoint)
    assert flags.keys() - parameters.keys() == {"dry_run"}
    assert parameters.keys() - flags.keys() == {"progress"}
    for name in flags.keys() - {"dry_run", "checkpoint", "output"}:
        assert flags[name] == plain(parameters[name]), name


def test_build_flags_are_the_parameters_of_build_engines() -> None:
    flags = read_flags("build", "bundle", "--target", "a100")
    assert flags.keys() == read_parameters(build_engines).keys() - {"progress"}


def test_generate_flags_are_the_parameters_of_llm_and_sampling() -> None:
    from quatrain.runtime import LLM, SamplingParams

    flags = read_flags("generate", "bundle")
    parameters = read_parameters(LLM) | read_parameters(SamplingParams)
    assert flags.keys() - parameters.keys() == {"prompts", "stats"}
    assert parameters.keys() - flags.keys() == {"verify"}
    for name in flags.keys() - {"prompts", "stats", "bundle"}:
        assert flags[name] == plain(parameters[name]), name


def test_perplexity_flags_are_its_parameters() -> None:
    from quatrain.runtime import perplexity

    flags = read_flags("perplexity", "bundle", "--text", "text.txt")
    assert flags.keys() >= read_parameters(perplexity).keys() - {"llm", "progress"}


def test_compare_flags_are_the_parameters_of_compare_bundle() -> None:
    from quatrain.exporter.comparison import compare_bundle

    flags = read_flags("compare", "bundle", "checkpoint")
    parameters = read_parameters(compare_bundle)
    assert flags.keys() - parameters.keys() == {"html"}
    assert parameters.keys() - flags.keys() == {"progress"}
    assert flags["runners"] is None  # each --runner adds some; without any it is the default
    for name in flags.keys() - {"html", "runners", "bundle", "checkpoint"}:
        assert flags[name] == plain(parameters[name]), name


def test_bench_flags_are_its_parameters_and_settings() -> None:
    from quatrain.exporter.bench import BenchSetting, bench_bundles

    flags = read_flags("bench", "bundle")
    settings = BenchSetting()
    own = {"markdown", "plot"}
    parameters = read_parameters(bench_bundles).keys() - {"setting", "say"}
    assert flags.keys() - own == parameters | set(BenchSetting.__dataclass_fields__)
    for name in BenchSetting.__dataclass_fields__:
        value = getattr(settings, name)
        assert flags[name] == (list(value) if isinstance(value, tuple) else value), name


def test_plan_flags_are_the_parameters_of_both_its_halves() -> None:
    from quatrain.exporter.capacity import plan_capacity
    from quatrain.exporter.capacity.model import open_planned

    flags = read_flags("plan", "path")
    parameters = read_parameters(plan_capacity).keys() | read_parameters(open_planned).keys()
    assert flags.keys() - {"path"} <= parameters
    assert parameters - {"model", "checkpoint"} <= flags.keys()


def test_inspect_flags_are_the_parameters_of_inspect_checkpoint() -> None:
    flags = read_flags("inspect", "checkpoint")
    diagnosis = {"activations", "tokens", "plot"}
    assert flags.keys() - diagnosis == read_parameters(inspect_checkpoint).keys() - {"progress"}


def test_target_takes_several_names_at_once_and_again() -> None:
    words = ["build", "bundle", "--target", "a100", "a6000", "--target", "rtx3090"]
    assert make_parser(words).parse_args(words).targets == ["a100", "a6000", "rtx3090"]


def test_help_of_target_names_every_target(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["build", "--help"])
    assert stop.value.code == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert ", ".join(target.name for target in TARGETS) in shown
