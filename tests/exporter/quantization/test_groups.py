"""Codes and scales of a matrix."""

import ml_dtypes
import numpy as np
import pytest

from quatrain.exporter.quantization.groups import dequantize, pack_nibbles, quantize

FLOAT16, BFLOAT16 = np.dtype(np.float16), np.dtype(ml_dtypes.bfloat16)


def make_weight(rows=6, columns=64, seed=0):
    return np.random.default_rng(seed).normal(size=(rows, columns)).astype(np.float32)


@pytest.mark.parametrize("dtype", [FLOAT16, BFLOAT16, np.dtype(np.float32)], ids=str)
@pytest.mark.parametrize(("bits", "steps"), [(4, 7), (8, 127)])
def test_eight_bits_round_to_half_a_step_and_four_do_no_worse_on_average(bits, steps, dtype):
    weight = make_weight()

    groups = quantize(weight, bits, 32, dtype)
    restored = dequantize(groups)

    assert groups.codes.shape == (64, 6) and groups.scales.shape == (2, 6)
    assert groups.codes.min() >= -steps - 1 and groups.codes.max() <= steps
    assert (groups.scales.astype(dtype).astype(np.float32) == groups.scales).all()
    step = np.abs(weight.reshape(6, 2, 32)).max(axis=2, keepdims=True) / steps
    error = np.abs(weight - restored).reshape(6, 2, 32)
    # Rounding a scale to bfloat16 moves the largest code by up to 2^-9 of itself.
    slack = 1 + (steps / 128 if dtype == BFLOAT16 else 0.1)
    if bits == 8:
        assert (error <= 0.5 * step * slack).all()
    plain = np.rint(weight.reshape(6, 2, 32) / step) * step
    least = 1.05 if dtype != BFLOAT16 else 1.1
    assert np.square(error).mean() <= least * np.square(weight.reshape(6, 2, 32) - plain).mean()


def test_clipping_is_kept_only_where_it_helps():
    """One weight far out: clipped it would lose more than the others gain."""
    weight = make_weight(1, 32) * 0.01
    weight[0, 5] = 7.0

    groups = quantize(weight, 4, 32, np.dtype(np.float32))

    assert groups.codes[5, 0] == 7
    assert dequantize(groups)[0, 5] == pytest.approx(7.0, rel=0.02)


@pytest.mark.parametrize("bits", [4, 8])
def test_zeros_stay_zeros_and_tiny_weights_stay_finite(bits):
    weight = np.zeros((2, 64), np.float32)
    weight[1, :32] = 1e-9

    groups = quantize(weight, bits, 32, FLOAT16)

    assert (groups.scales > 0).all() and (dequantize(groups) == 0).all()


def test_a_nibble_is_a_twos_complement_and_the_first_is_the_lower():
    codes = np.array([[1, -1], [7, -7]], np.int8)

    assert pack_nibbles(codes).tolist() == [0xF1, 0x97]
    unpacked = np.array([[1, -1], [7, -7]], ml_dtypes.int4)
    assert unpacked.astype(np.int8).tolist() == codes.tolist()


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("dtype", [FLOAT16, BFLOAT16, np.dtype(np.float32)], ids=str)
@pytest.mark.parametrize(("bits", "largest"), [(4, 7), (8, 127)])
def test_weights_of_any_size_stay_finite_and_near(bits, largest, dtype):
    """Odd numbers of rows, zeros among them; as large as the type, denormal, and between."""
    for number, exponent in enumerate(range(-44, 38, 3)):
        weight = make_weight(5, 96, seed=number).astype(np.float64) * 10.0**exponent
        weight[2] = 0
        weight = np.clip(weight, -ml_dtypes.finfo(dtype).max, ml_dtypes.finfo(dtype).max)
        weight = weight.astype(np.float32)

        restored = dequantize(quantize(weight, bits, 32, dtype))

        assert np.isfinite(restored).all() and (restored[2] == 0).all()
        peaks = np.abs(weight).reshape(5, 3, 32).max(axis=2, keepdims=True)
        error = np.abs(weight.astype(np.float64) - restored).reshape(5, 3, 32)
        # Half a step and what clipping takes, and what float16 has no number for.
        assert (error <= peaks * (0.17 if bits == 4 else 1 / 127) + largest * 2.0**-24).all()


def test_negative_weights_have_a_code_more():
    codes = quantize(make_weight(64, 256), 4, 32, np.dtype(np.float32)).codes

    assert codes.min() == -8 and codes.max() == 7
