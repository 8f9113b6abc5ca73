"""The functions the NumPy reference is made of, against torch, at their edges too."""

import numpy as np
import pytest
import torch
from torch.nn import functional

from quatrain.exporter.reference.feed_forward import choose_channels
from quatrain.exporter.reference.functions import (
    gelu,
    log_softmax,
    rms_norm,
    sigmoid,
    silu,
    softmax,
)

X = np.concatenate((np.linspace(-9, 9, 181), [-1e4, -200, -90, 0, 1e-20, 90, 200, 1e4])).astype(
    np.float32
)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (gelu, functional.gelu),
        (silu, functional.silu),
        (sigmoid, torch.sigmoid),
        (softmax, lambda x: torch.softmax(x, -1)),
        (log_softmax, lambda x: torch.log_softmax(x, -1)),
        (
            lambda x: rms_norm(x, X, 1e-5),
            lambda x: functional.rms_norm(x, x.shape, torch.from_numpy(X), 1e-5),
        ),
    ],
)
def test_a_function_is_that_of_torch(ours, theirs) -> None:
    found = ours(X)
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, theirs(torch.from_numpy(X)).numpy(), rtol=1e-5, atol=1e-6)


def test_of_equal_channels_the_first_are_chosen() -> None:
    scores = np.array([[0, 1, 0, 0, 5, 5, 5, 5]], np.float32)
    chosen = choose_channels(scores, 4, 2)
    assert chosen.astype(int).tolist() == [[1, 1, 0, 0, 1, 1, 0, 0]]


def test_what_is_no_number_displaces_none() -> None:
    scores = np.array([[np.nan, -3, -np.inf, -2]], np.float32)
    assert choose_channels(scores, 4, 2).astype(int).tolist() == [[0, 1, 0, 1]]
