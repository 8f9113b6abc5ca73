"""Compiling in a child process: what comes back, once, and what fails."""

from dataclasses import replace

import pytest
from tests.plugins.twice import TwicePlugin

from quatrain.plugins import compiler
from quatrain.plugins.compiler import CompileError, compile_kernels, get_cubins
from quatrain.plugins.launch import KernelVariant

VARIANT = TwicePlugin(factor=5.0)._variant("float32")


def test_a_variant_is_compiled_once_for_each_gpu(monkeypatch: pytest.MonkeyPatch):
    calls = []

    def count(variants: list[KernelVariant], sm: str) -> object:
        calls.append((len(variants), sm))
        return compile_kernels(variants, sm)

    monkeypatch.setattr(compiler, "compile_kernels", count)

    first = get_cubins([VARIANT, VARIANT], "8.6")
    again = get_cubins([VARIANT], "8.6")
    other = get_cubins([VARIANT], "8.0")

    assert calls == [(1, "8.6"), (1, "8.0")]
    assert first == [again[0]] * 2 and again[0].image != other[0].image
    assert again[0].image.startswith(b"\x7fELF")
    assert (again[0].entry, again[0].threads) == ("twice_kernel", 128)


def test_what_lies_about_in_the_current_folder_is_not_imported(tmp_path, monkeypatch):
    for name in ("base64", "triton", "quatrain"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('imported')")
    monkeypatch.chdir(tmp_path)

    assert compile_kernels([VARIANT], "8.6")[0].cubin.entry == "twice_kernel"


def test_a_cache_that_cannot_be_written_is_done_without(tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "file" / "cache"))

    assert compile_kernels([VARIANT], "8.6")[0].cubin.entry == "twice_kernel"


def test_an_unknown_gpu_is_named():
    with pytest.raises(CompileError, match=r"SM 4\.2: they are compiled for SM 8\.0, "):
        compile_kernels([VARIANT], "4.2")


def test_the_compiler_s_words_are_kept():
    with pytest.raises(CompileError, match="no_such_kernel"):
        compile_kernels([replace(VARIANT, kernel="no_such_kernel")], "8.6")


def test_types_that_are_not_the_kernel_s_are_an_error():
    with pytest.raises(CompileError, match=r"takes \['x', 'y', 'size'\]"):
        compile_kernels([replace(VARIANT, types=("*fp32",))], "8.6")


def test_more_shared_memory_than_the_gpu_has_is_an_error():
    result = {"image": "", "entry": "k", "shared_bytes": 100 * 1024, "threads": 128, "report": {}}

    assert compiler._read_result(VARIANT, dict(result), "8.0").cubin.shared_bytes == 100 * 1024
    with pytest.raises(CompileError, match=r"102,400 bytes of shared memory, SM 8\.6 has 101,376"):
        compiler._read_result(VARIANT, dict(result), "8.6")
