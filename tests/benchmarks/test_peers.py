"""The benchmarks against peers: who takes part, what a worker measures, how it is reported."""

import json
import sys
from argparse import ArgumentParser, Namespace
from pathlib import Path

import numpy as np
import pytest
from tokenizers import AddedToken, Tokenizer, models

from benchmarks import export_vs_peers
from benchmarks._engines import ENGINES, Engine, export_model, find_obstacle
from benchmarks._llama_cpp_model import write_gguf
from benchmarks._peer_flags import add_peer_flags, choose_engines, choose_pythons
from benchmarks._report import Sample, count_same_tokens, sample, summarize, to_text
from benchmarks._worker import Generation, Reply, Worker
from samples._gguf_model import half_tensors, llama_config, open_gguf, read_metadata

WORKER = """
import time
from contextlib import contextmanager
from benchmarks._worker import Generation, serve

@contextmanager
def open_slow(model, threads):
    print("a library that talks")
    def generate(prompt, max_tokens, mark):
        time.sleep(0.05)
        for _ in range(max_tokens):
            mark()
            time.sleep(0.01)
        return Generation(len(prompt), list(range(max_tokens)), f"{model} {threads}")
    yield generate

serve(open_slow, ["numpy"])
"""


def parse(*arguments: str) -> Namespace:
    parser = ArgumentParser()
    add_peer_flags(parser, tuple(ENGINES), ("quatrain",))
    return parser.parse_args(arguments)


def test_an_engine_that_is_not_there_is_left_out_with_the_reason(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setitem(ENGINES, "optimum", Engine("w", "not_there_at_all", "not-there", None))
    arguments = parse("--engines", "quatrain", "optimum", "transformers", "--precision", "int4")
    assert choose_engines(arguments, choose_pythons(arguments)) == ["quatrain"]
    assert "transformers is left out: it has no int4" in capsys.readouterr().out

    arguments = parse("--engines", "quatrain", "optimum")
    assert choose_engines(arguments, choose_pythons(arguments)) == ["quatrain"]
    said = capsys.readouterr().out
    assert "No module named 'not_there_at_all'" in said
    assert "pip install not-there" in said


def test_nobody_left_and_a_python_that_is_not_there(tmp_path: Path):
    missing = str(tmp_path / "python")
    assert "no Python there" in str(find_obstacle(ENGINES["quatrain"], missing, "fp32"))
    arguments = parse("--python", f"quatrain={missing}")
    with pytest.raises(SystemExit, match="no engine is left"):
        choose_engines(arguments, choose_pythons(arguments))


@pytest.mark.parametrize("pair", ["quatrain", "quatrain=", "nobody=/python"])
def test_what_is_no_pair_is_refused(pair: str, capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit):
        parse("--python", pair)
    assert "is not ENGINE=PATH" in capsys.readouterr().err


def test_an_export_is_made_once_and_wholly(tmp_path: Path):
    code = "import sys, pathlib; pathlib.Path(sys.argv[1]).mkdir(); sys.exit(int(sys.argv[2]))"
    good = Engine("w", "sys", "-", lambda _, out, precision: ["-c", code, str(out), "0"])
    bad = Engine("w", "sys", "-", lambda _, out, precision: ["-c", code, str(out), "3"])
    out = tmp_path / "new" / "model"
    with pytest.raises(RuntimeError, match="failed"):
        export_model(bad, sys.executable, tmp_path, out, "fp32")
    assert not list((tmp_path / "new").iterdir())
    assert export_model(good, sys.executable, tmp_path, out, "fp32") == out
    assert export_model(bad, sys.executable, tmp_path, out, "fp32") == out
    as_it_is = Engine("w", "sys", "-", None)
    assert export_model(as_it_is, sys.executable, tmp_path, out, "fp32") == tmp_path


def test_a_worker_tells_the_first_token_from_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    (tmp_path / "slow_engine.py").write_text(WORKER)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with Worker(sys.executable, "slow_engine", ["a-model", "--threads", "3"]) as worker:
        assert worker.versions == {"numpy": np.__version__}
        reply = worker.ask("four", 5)
    assert reply.generation == Generation(4, [0, 1, 2, 3, 4], "a-model 3")
    assert reply.first_token_s >= 0.05
    assert reply.decode_s >= 0.04
    assert reply.decode_cpu_s < reply.decode_s


def test_a_worker_that_fails_is_an_error():
    with pytest.raises(RuntimeError, match="ended without an answer"):
        Worker(sys.executable, "not_there_at_all", [])


def test_a_sample_and_its_summary():
    reply = Reply(0.2, 0.5, 0.9, Generation(7, [1, 2, 3], "abc", outside_s=0.03))
    assert sample(reply) == pytest.approx(Sample(4.0, 200.0, 1.8, 30.0))

    ours = [Sample(20.0, 100.0, 2.0, 1.0), Sample(30.0, 100.0, 2.0, 3.0)]
    theirs = [Sample(10.0, 200.0, 2.0, None), Sample(10.0, 50.0, 2.0, None)]
    summary = summarize({"a": ours, "b": theirs})
    assert summary["ratios"]["a"]["first_token_ms"] == {"median": 1, "min": 1, "max": 1}
    assert summary["ratios"]["b"] == {
        "decode_tokens_per_s": {"median": 2.5, "min": 2.0, "max": 3.0},
        "first_token_ms": {"median": 1.25, "min": 0.5, "max": 2.0},
    }
    assert summary["engines"]["b"]["outside_ms"] is None

    same = count_same_tokens({"a": [1, 2, 3], "b": [1, 2, 4]})
    assert same == {"a": 3, "b": 2}
    header, a, b, outside = to_text(summary, same).splitlines()
    assert "a is" in header
    assert a.startswith("a") and "25.0 (20.0 to 30.0)" in a
    assert "2.50x (2.00 to 3.00)" in b and b.endswith("2")
    assert outside == "a, outside the sessions: 2 (1 to 3) ms a call"


def test_a_gguf_file_holds_what_the_checkpoint_does(tmp_path: Path):
    config, weights = write_tiny_checkpoint(tmp_path)
    write_gguf(tmp_path, tmp_path / "model.gguf")

    reader = open_gguf(tmp_path / "model.gguf")
    metadata = read_metadata(reader)
    assert llama_config(metadata, tied=True).items() >= config.items()
    assert metadata["tokenizer.ggml.tokens"] == ["<end>", "<start>", "a", "b", "ab"]
    assert metadata["tokenizer.ggml.token_type"] == [3, 3, 1, 1, 1]
    assert metadata["tokenizer.ggml.merges"] == ["a b"]
    found = half_tensors(reader.tensors, heads=4, kv_heads=2)
    assert found.keys() == weights.keys()
    for name, weight in weights.items():
        np.testing.assert_array_equal(found[name], weight, err_msg=name)


def write_tiny_checkpoint(folder: Path) -> tuple[dict[str, object], dict[str, np.ndarray]]:
    from safetensors.numpy import save_file

    config: dict[str, object] = {
        "model_type": "llama",
        "num_hidden_layers": 2,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "max_position_embeddings": 64,
        "rope_theta": 10000.0,
        "rms_norm_eps": 1e-05,
        "vocab_size": 5,
        "bos_token_id": 1,
        "eos_token_id": 0,
        "tie_word_embeddings": True,
    }
    shapes = {"model.embed_tokens": (5, 32), "model.norm": (32,)}
    for layer in (f"model.layers.{number}." for number in range(2)):
        shapes |= {f"{layer}{norm}_layernorm": (32,) for norm in ("input", "post_attention")}
        shapes |= {f"{layer}self_attn.{name}_proj": (32, 32) for name in "qo"}
        shapes |= {f"{layer}self_attn.{name}_proj": (16, 32) for name in "kv"}
        shapes |= {f"{layer}mlp.{name}_proj": (48, 32) for name in ("gate", "up")}
        shapes |= {f"{layer}mlp.down_proj": (32, 48)}
    rng = np.random.default_rng(0)
    weights = {f"{n}.weight": rng.standard_normal(s, np.float32) for n, s in shapes.items()}
    weights = {name: weight.astype(np.float16) for name, weight in weights.items()}
    save_file(weights, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(config))

    vocab = {"<end>": 0, "<start>": 1, "a": 2, "b": 3, "ab": 4}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[("a", "b")]))
    tokenizer.add_special_tokens([AddedToken("<end>"), AddedToken("<start>")])
    tokenizer.save(str(folder / "tokenizer.json"))
    return config, weights


def test_an_export_is_timed_and_a_failed_one_reported(tmp_path: Path):
    make = f"open({str(tmp_path)!r} + '/' + 'OUT'.replace('/', '_'), 'w'); bytearray(60_000_000)"
    results = export_vs_peers.run({"a": [sys.executable, "-c", make]}, rounds=2)
    assert len(results["a"]) == 2
    assert len(list(tmp_path.iterdir())) == 3  # each time to a folder of its own
    assert all(seconds > 0 and megabytes > 60 for seconds, megabytes in results["a"])
    assert export_vs_peers.to_text(results).splitlines()[1].startswith("a ")
    with pytest.raises(RuntimeError, match="no such export"):
        export_vs_peers.measure([sys.executable, "-c", "raise SystemExit('no such export')"])
