"""Runs `quatrain` in a process of its own."""

import subprocess
import sys
from pathlib import Path

QUATRAIN = [sys.executable, "-m", "quatrain.exporter.cli"]


def run_quatrain(*words: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*QUATRAIN, *map(str, words)], capture_output=True, text=True, timeout=120
    )
