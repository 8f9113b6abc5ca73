"""Export of a checkpoint with the shape of Qwen3-8B (16 GB, bfloat16): seconds and peak memory.

    python -m benchmarks.export_8b

The weights are sparse files, so they take no room on disk; the export only reads headers.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks._synthetic import write_checkpoint
from quatrain.exporter.spec import Backbone, DecoderSpec

# Qwen/Qwen3-8B, config.json
QWEN3_8B = Backbone(
    model_type="qwen3",
    vocab_size=151936,
    hidden_size=4096,
    intermediate_size=12288,
    num_hidden_layers=36,
    num_attention_heads=32,
    num_key_value_heads=8,
    head_dim=128,
    max_position_embeddings=40960,
    rope_theta=1e6,
    qk_norm=True,
)


def main() -> None:
    """Write the checkpoint, export it in a process of its own, print what that took."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, help="where to work (default: a temporary folder)")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=args.folder) as folder:
        checkpoint = Path(folder) / "qwen3-8b-shaped"
        num_bytes = write_checkpoint(DecoderSpec(QWEN3_8B), checkpoint, rng=None)
        shards = len(list(checkpoint.glob("*.safetensors")))
        print(f"checkpoint: {num_bytes / 1e9:.1f} GB in {shards} shards")
        command = [sys.executable, "-m", "quatrain.exporter.cli", "export", str(checkpoint)]
        command += ["-o", str(Path(folder) / "bundle"), "--weights", "link", "--json"]
        start = time.perf_counter()
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        _, status, usage = os.wait4(process.pid, 0)
        seconds = time.perf_counter() - start
        code = os.waitstatus_to_exitcode(status)
        print(f"export: {seconds:.1f} s, peak memory {usage.ru_maxrss / 1e3:.0f} MB, exit {code}")


if __name__ == "__main__":
    main()
