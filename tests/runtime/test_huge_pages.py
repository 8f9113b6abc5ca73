"""Memory allocated inside the block is asked to be on huge pages; contents stay as they are."""

import mmap
import subprocess
import sys
from pathlib import Path

import pytest

from quatrain.runtime.huge_pages import huge_pages

MODE = Path("/sys/kernel/mm/transparent_hugepage/enabled")
SCRIPT = """
import mmap
from quatrain.runtime.huge_pages import huge_pages

with huge_pages():
    memory = mmap.mmap(-1, 64 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    memory.write(b"x" * (64 << 20))
memory.seek(0)
assert memory.read() == b"x" * (64 << 20)
kilobytes = 0
for line in open("/proc/self/smaps_rollup"):
    if line.startswith("AnonHugePages:"):
        kilobytes = int(line.split()[1])
print(kilobytes)
"""


def test_new_memory_moves_to_huge_pages_and_keeps_its_contents():
    if not MODE.exists() or "[never]" in MODE.read_text():
        pytest.skip("this kernel gives no huge pages on request")
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True
    )
    # All but the ends, unless memory is so scattered that there are none: then none at all.
    kilobytes = int(done.stdout)
    if kilobytes == 0:
        pytest.skip("this machine has no huge pages to give now")
    assert kilobytes >= 32 << 10


def test_an_error_in_the_block_passes_through():
    with pytest.raises(ValueError, match="inside"), huge_pages():
        raise ValueError("inside")


def test_a_system_without_maps_is_left_alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setattr("quatrain.runtime.huge_pages._MAPS", str(tmp_path / "none"))
    with huge_pages():
        memory = mmap.mmap(-1, 16 << 20)
    assert memory[:1] == b"\0"
