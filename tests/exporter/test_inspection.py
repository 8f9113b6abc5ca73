"""The report on a checkpoint."""

import json
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest
from tests.exporter.checkpoint.folders import (
    BACKBONE,
    DENSE,
    GOLDEN_NVIUM,
    random_tensors,
    write_checkpoint,
    write_json,
    write_shards,
)

from quatrain.exporter.errors import CheckpointError
from quatrain.exporter.inspection import inspect_checkpoint
from quatrain.exporter.spec import BankTopK, DecoderSpec, Streams


def test_golden_nvium() -> None:
    report = inspect_checkpoint(GOLDEN_NVIUM, check_weights=True)
    assert (report.family, report.stored_dtype) == ("nvium", "bfloat16")
    assert report.num_parameters == 274_888
    assert report.weight_bytes == 549_776 and report.dtype_bytes == {"BF16": 549_776}
    size = (GOLDEN_NVIUM / "model.safetensors").stat().st_size
    assert asdict(report)["files"] == [{"name": "model.safetensors", "bytes": size}]
    assert report.kv_bytes_per_token == 2 * 5 * 4 * 16 * 2  # k and v, layers, heads, head_dim, fp16
    assert [bill.embeddings for bill in report.weights] == ["graph", "host"]
    assert report.weights[0].engine_bytes == report.weight_bytes
    assert report.weights[1].host_bytes == 512 * 64 * 2
    assert (report.cache.rows_per_token, report.cache.bytes_per_row) == (1, 1280)
    assert report.settings_file is not None and report.settings_file.endswith("config.yaml")
    assert report.bad_weights == []
    assert json.loads(json.dumps(asdict(report))) == asdict(report)


def test_tied_tensors_count_once_and_leftovers_do_not(tmp_path: Path) -> None:
    tensors = random_tensors(DENSE, np.float32)
    whole = sum(value.size for value in tensors.values())
    tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"]
    write_checkpoint(tmp_path, tensors, tie_word_embeddings=True)
    report = inspect_checkpoint(tmp_path)
    assert report.num_parameters == whole - 48 * 16
    assert report.weight_bytes == 4 * report.num_parameters
    assert report.leftovers == ["lm_head.weight"]
    assert report.bad_weights is None


def test_streams_multiply_the_cache(tmp_path: Path) -> None:
    spec = DecoderSpec(BACKBONE, streams=Streams(4))
    report = inspect_checkpoint(write_checkpoint(tmp_path, random_tensors(spec), scale_seq_times=3))
    row = 2 * 3 * 2 * 4 * 2  # keys and values, layers, heads, head_dim, bytes
    assert report.family == "hidden_decoding"
    assert (report.cache.rows_per_token, report.cache.bytes_per_row) == (4, row)
    assert report.kv_bytes_per_token == 4 * row
    assert report.weights[1].num_tables == 4
    assert report.weights[1].host_bytes == 4 * 48 * 16 * 2


def test_banks_are_described_and_billed(tmp_path: Path) -> None:
    spec = DecoderSpec(BACKBONE, feed_forward=BankTopK(8, 2, 5))
    settings = {"bank_size": 8, "top_k": 2, "predictor_rank": 5}
    report = inspect_checkpoint(
        write_checkpoint(tmp_path, random_tensors(spec), bank_topk=settings)
    )
    assert report.family == "bank_topk"
    banks = report.spec["feed_forward"]
    assert isinstance(banks, dict) and banks.items() >= settings.items()
    assert report.feed_forward_bill is not None
    assert report.feed_forward_bill.dense_bytes == 3 * 3 * 24 * 16 * 2
    assert json.loads(json.dumps(asdict(report))) == asdict(report)


def test_bad_weights_and_tokenizer(tmp_path: Path) -> None:
    tensors = random_tensors(DENSE)
    tensors["model.norm.weight"][:] = np.nan
    write_checkpoint(tmp_path, tensors, eos_token_id=[2, 3])
    write_json(tmp_path / "tokenizer.json", {})
    write_json(tmp_path / "tokenizer_config.json", {"add_bos_token": True})
    report = inspect_checkpoint(tmp_path, check_weights=True)
    assert report.bad_weights is not None
    assert [(bad.name, bad.num_nan) for bad in report.bad_weights] == [("model.norm.weight", 16)]
    assert report.tokenizer_files == ["tokenizer.json", "tokenizer_config.json"]
    assert (report.eos_token_ids, report.bos_token_id, report.add_bos_token) == ([2, 3], 1, True)


def test_shards_are_listed(tmp_path: Path) -> None:
    tensors = random_tensors(DENSE)
    names = sorted(tensors)
    write_checkpoint(tmp_path, tensors)
    (tmp_path / "model.safetensors").unlink()
    halves = (names[:10], names[10:])
    write_shards(
        tmp_path,
        {f"{i}.safetensors": {n: tensors[n] for n in half} for i, half in enumerate(halves)},
    )
    assert [file.name for file in inspect_checkpoint(tmp_path).files] == [
        "0.safetensors",
        "1.safetensors",
    ]


def test_errors_pass_through(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"no config\.json in it"):
        inspect_checkpoint(tmp_path)


def test_memory_stays_bounded_while_weights_are_checked(tmp_path: Path) -> None:
    tensors = random_tensors(DENSE, np.float32)
    del tensors["lm_head.weight"]
    tensors["model.embed_tokens.weight"] = np.zeros((1_500_000, 16), np.float32)  # 96 MB
    write_checkpoint(tmp_path, tensors, vocab_size=1_500_000, tie_word_embeddings=True)
    program = (
        "import resource, sys; from pathlib import Path\n"
        "from quatrain.exporter.inspection import inspect_checkpoint\n"
        "peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "before = peak(); inspect_checkpoint(Path(sys.argv[1]), check_weights=True)\n"
        "print(peak() - before)"
    )
    command = [sys.executable, "-c", program, str(tmp_path)]
    run = subprocess.run(command, capture_output=True, text=True, check=True)
    unit = 1 if sys.platform == "darwin" else 1024
    (tmp_path / "model.safetensors").unlink()
    assert int(run.stdout) * unit < 50e6
