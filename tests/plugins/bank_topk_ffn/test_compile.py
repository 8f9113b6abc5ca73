"""The kernels of `quatrain::BankTopKFeedForward` as the compiler sees them."""

import re

import pytest
from tests.plugins.compiled import Report, compile_report

from quatrain.plugins.bank_topk_ffn.plugin import BankTopKFeedForwardPlugin
from quatrain.plugins.compiler import SHARED_MEMORY
from quatrain.plugins.definition import DType, TensorFacts

WEIGHT_KERNELS = {"run_channels_kernel", "multiply_gate_up_kernel", "multiply_down_kernel"}
CONVERGENCE_BYTES = 16
"""A stack of some variants that have registers to spare: no values that a loop needs."""


def compile_all(sm: str, dtype: DType, bank_size: int, top_k: int, max_rows: int) -> list[Report]:
    shapes = [(1, max_rows, 4096), (256, 4096), (12288, 256), *[(12288, 4096)] * 3]
    facts = [TensorFacts(dtype, shape, shape) for shape in shapes]
    plugin = BankTopKFeedForwardPlugin(bank_size, top_k)
    return compile_report(plugin.list_variants(facts), sm)


def check(reports: list[Report], sm: str, stack_bytes: int) -> None:
    for report in reports:
        name = report.variant.kernel
        assert report.local_bytes <= stack_bytes, name
        assert report.shared_bytes <= SHARED_MEMORY[sm], name
        if name in WEIGHT_KERNELS:
            wide = [size for size in report.load_bytes if size == 16]
            assert len(wide) >= 0.8 * len(report.load_bytes), (name, report.load_bytes)
            assert "cp.async" in report.ptx, name


@pytest.mark.parametrize("sm", ["8.0", "8.6", "9.0"])
def test_kernels_fit_and_load_wide(sm):
    check(compile_all(sm, "float16", 64, 16, 2048), sm, 0)


def test_one_row_fits_with_banks_of_any_size():
    for bank_size, top_k in ((32, 8), (128, 32)):
        check(compile_all("8.6", "bfloat16", bank_size, top_k, 1), "8.6", 0)


def test_sums_need_no_atomic_operations():
    """Those add up in an order that changes from run to run."""
    for report in compile_all("8.0", "bfloat16", 64, 16, 64):
        assert not re.search(r"\b(atom|red)\.", report.ptx), report.variant.kernel


@pytest.mark.slow
@pytest.mark.parametrize("sm", ["8.0", "8.6", "9.0"])
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize(("bank_size", "top_k"), [(32, 8), (64, 16), (128, 32)])
def test_all_kernels_fit(sm, dtype, bank_size, top_k):
    check(compile_all(sm, dtype, bank_size, top_k, 2048), sm, CONVERGENCE_BYTES)
