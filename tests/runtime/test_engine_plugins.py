"""Plugins that engines need: missing ones are named, and what they refuse is told."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from quatrain.plugins.problems import note_problem, take_problems
from quatrain.runtime import engine_plugins
from quatrain.runtime.engine_plugins import raise_plugin_problems, require_plugins
from quatrain.runtime.errors import EngineError
from quatrain.runtime.manifest import Engine


class FakeTensorRT:
    """A registry with some creators."""

    def __init__(self, *creators: tuple[str, str, str]) -> None:
        names = ("plugin_namespace", "name", "plugin_version")
        facts = [SimpleNamespace(**dict(zip(names, each, strict=True))) for each in creators]
        self.registry = SimpleNamespace(all_creators=facts)

    def get_plugin_registry(self) -> Any:
        return self.registry


def make_engine(plugins: dict[str, int]) -> Engine:
    return Engine(
        graph="decoder",
        target="a6000",
        sm="8.6",
        flavour="tensorrt-rtx",
        version="1.7",
        path="engines/decoder.engine",
        bytes=3,
        build_seconds=1.0,
        profiles=[],
        plugins=plugins,
        vendor_supported=True,
    )


@pytest.fixture(autouse=True)
def registered(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The modules that our plugins were registered with."""
    take_problems()
    calls: list[Any] = []
    monkeypatch.setattr(engine_plugins, "register", calls.append)
    return calls


def test_plugins_are_registered_where_an_engine_has_some(registered):
    library = FakeTensorRT(("quatrain", "ExitRouter", "1"))

    require_plugins(library, Path("bundle"), [make_engine({})])
    assert registered == []
    require_plugins(library, Path("bundle"), [make_engine({"quatrain::ExitRouter:1": 2})])
    assert registered == [library]


@pytest.mark.parametrize(
    "creators", [(), (("quatrain", "ExitRouter", "1"),), (("other", "ExitRouter", "2"),)]
)
def test_a_missing_or_mismatching_plugin_is_named(creators):
    library = FakeTensorRT(*creators)
    known = ", ".join("{}::{}:{}".format(*creator) for creator in creators) or "none"

    with pytest.raises(EngineError) as caught:
        require_plugins(library, Path("bundle"), [make_engine({"quatrain::ExitRouter:2": 1})])
    assert f"needs the plugins quatrain::ExitRouter:2; registered are {known}" in str(caught.value)
    assert "quatrain build bundle --target a6000" in str(caught.value)


def test_what_a_plugin_refused_is_told_once():
    note_problem("ExitRouter", "the engine has kernels for SM 8.0 only, this GPU is SM 8.6")
    with pytest.raises(EngineError, match=r"ExitRouter: the engine has kernels for SM 8\.0 only"):
        raise_plugin_problems("run", "build")
    raise_plugin_problems("run", "build")
