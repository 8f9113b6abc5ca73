"""Which TensorRT builds for which target, from what is installed and which GPU is here."""

import pytest

from quatrain.exporter.engine import choice
from quatrain.exporter.engine.choice import find_builder, require_builder
from quatrain.exporter.errors import BuildError
from quatrain.exporter.local_gpu import LocalGpu, LocalGpus
from quatrain.exporter.targets import find_target

NO_GPU = LocalGpus(problem="no NVIDIA driver here")
RTX3090 = LocalGpus((LocalGpu(0, "NVIDIA GeForce RTX 3090", "8.6", 24 << 30),), "570.1", "12.8")
A100 = LocalGpus((LocalGpu(0, "NVIDIA A100-SXM4-40GB", "8.0", 40 << 30),), "570.1", "12.8")
BOTH = {"tensorrt-rtx": "1.7", "tensorrt": "10.16"}


@pytest.fixture
def installed(monkeypatch):
    """Says which TensorRTs are installed."""
    return lambda versions: monkeypatch.setattr(choice, "find_installed_version", versions.get)


@pytest.mark.parametrize(
    ("local", "name", "flavour"),
    [
        (NO_GPU, "a100", "tensorrt-rtx"),
        (NO_GPU, "a6000", "tensorrt-rtx"),
        (RTX3090, "rtx3090", "tensorrt-rtx"),
        (RTX3090, "a100", "tensorrt-rtx"),
        (A100, "a100", "tensorrt"),
        (A100, "a6000", "tensorrt-rtx"),
    ],
)
def test_what_builds_when_both_are_installed(installed, local, name, flavour):
    installed(BOTH)

    assert find_builder(find_target(name), local).flavour == flavour


def test_classic_tensorrt_alone_builds_for_the_gpu_here(installed):
    installed({"tensorrt": "10.16"})

    assert require_builder(find_target("a6000"), RTX3090) == "tensorrt"


def test_classic_tensorrt_is_refused_for_another_gpu(installed):
    installed(BOTH)

    with pytest.raises(BuildError) as error:
        require_builder(find_target("a100"), RTX3090, "tensorrt")

    assert "builds only for the GPU here, NVIDIA GeForce RTX 3090 (8.6), not for 8.0" in (
        error.value.found
    )
    assert "a machine with NVIDIA A100" in error.value.fix


def test_classic_tensorrt_is_refused_without_a_gpu(installed):
    installed(BOTH)

    with pytest.raises(BuildError, match="builds only on the GPU itself, and no NVIDIA driver"):
        require_builder(find_target("a6000"), NO_GPU, "tensorrt")


def test_where_nothing_is_installed_both_are_named(installed):
    installed({})

    with pytest.raises(BuildError) as error:
        require_builder(find_target("rtx3090"), NO_GPU)

    assert error.value.found == "tensorrt-rtx: not installed; tensorrt: not installed"
