"""What one processor is told from another by."""

from pathlib import Path

import pytest

from quatrain.runtime import cpu_identity
from quatrain.runtime.cpu_identity import describe_cpu

CORE = "processor\t: {core}\nmodel name\t: Some CPU\ncpu MHz\t\t: {mhz}\nflags\t\t: {flags}\n\n"


@pytest.fixture
def info(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "cpuinfo"
    monkeypatch.setattr(cpu_identity, "_CPU_INFO", str(path))
    return path


def test_features_count_and_clocks_and_numbers_of_cores_do_not(info: Path) -> None:
    info.write_text(CORE.format(core=0, mhz=2000, flags="avx2"))
    first = describe_cpu()
    info.write_text("".join(CORE.format(core=n, mhz=900 + n, flags="avx2") for n in range(3)))
    assert describe_cpu() == first
    info.write_text(CORE.format(core=0, mhz=2000, flags="avx2 avx512f"))
    assert describe_cpu() != first


def test_cores_of_two_kinds_both_count(info: Path) -> None:
    little, big = ("processor\t: 0\nCPU part\t: 0xd05\n", "processor\t: 1\nCPU part\t: 0xd0b\n")
    info.write_text(little + big)
    both = describe_cpu()
    info.write_text(little)
    assert describe_cpu() != both


def test_elsewhere_the_machine_stands_for_its_processor(
    info: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = describe_cpu()
    assert describe_cpu() == here
    monkeypatch.setattr("platform.node", lambda: "another")
    assert describe_cpu() != here
