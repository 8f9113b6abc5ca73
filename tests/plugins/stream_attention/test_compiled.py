"""The kernels of `quatrain::StreamFactorizedAttention` as they are compiled for devices."""

import pytest
from tests.plugins.compiled import compile_report
from tests.plugins.stream_attention.test_plugin import make_facts, make_shapes

from quatrain.plugins.definition import DType
from quatrain.plugins.stream_attention.plugin import StreamFactorizedAttentionPlugin

MAX_SHARED_BYTES = {"8.0": 163 * 1024, "8.6": 99 * 1024, "9.0": 227 * 1024}
# Two programs on a multiprocessor of SM 8.6, which keeps 1 KiB of each: the few rows of a step.
TWO_FIT_BYTES = 50 * 1024 - 1024
MAX_CUBIN_BYTES = 80_000


@pytest.mark.parametrize(
    ("sm", "dtype", "head_dim"),
    [
        ("8.0", "float16", 128),
        ("8.6", "float16", 128),
        ("9.0", "float16", 128),
        ("8.6", "bfloat16", 64),
        ("8.6", "float16", 80),
        ("8.6", "float16", 256),
        ("8.6", "float32", 128),
    ],
)
def test_kernels_fit_their_device(sm: str, dtype: DType, head_dim: int) -> None:
    """No register is spilled, shared memory suffices, and keys and values come 16 bytes a load."""
    facts = make_facts(make_shapes(4, 16, 4, 512, head_dim, 8192, 8192), dtype)
    variants = StreamFactorizedAttentionPlugin(scale=0.1).list_variants(facts)
    assert len(variants) == (2 if dtype == "float32" else 5)
    for report in compile_report(variants, sm):
        assert report.local_bytes == 0, report.variant
        assert report.shared_bytes <= MAX_SHARED_BYTES[sm], report.variant
        assert report.cubin_bytes <= MAX_CUBIN_BYTES, report.variant
        # Positions are 8 bytes, and sums of weights 4; the rest are rows of D.
        is_merge = report.variant.kernel == "merge"
        assert set(report.load_bytes) <= {16, 8, 4 if is_merge else 16}, report.variant
        assert report.load_bytes.count(16) >= (1 if is_merge else 3), report.variant
        if dict(report.variant.constants).get("BLOCK_M", 64) <= 32 and dtype != "float32":
            assert report.shared_bytes <= TWO_FIT_BYTES, report.variant
