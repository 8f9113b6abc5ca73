"""A build that has to fail, and leave its bundle alone."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from quatrain.exporter.engine.engines import build_engines
from quatrain.exporter.errors import BuildError


def snapshot(bundle: Path) -> dict[str, bytes]:
    return {str(p.relative_to(bundle)): p.read_bytes() for p in bundle.rglob("*") if p.is_file()}


def fail_to_build(bundle: Path, targets: Sequence[str] = ("a6000",)) -> BuildError:
    """The error of a build that has to fail and leave the bundle alone."""
    before = snapshot(bundle)
    with pytest.raises(BuildError) as error:
        build_engines(bundle, targets)
    assert snapshot(bundle) == before
    assert {path.name for path in bundle.iterdir()} == {Path(name).parts[0] for name in before}
    return error.value
