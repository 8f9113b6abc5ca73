"""Windows, and the buckets of their positions."""

import numpy as np
import pytest

from quatrain.exporter.diagnosis.windows import cut_windows, number_buckets, start_buckets


@pytest.mark.parametrize("size", [1, 3, 7, 19, 50])
@pytest.mark.parametrize("bos", [None, 0])
def test_every_token_is_predicted_once_from_the_one_before_it(size: int, bos: int | None) -> None:
    ids = list(range(20))
    windows = cut_windows(ids, size, bos)
    assert [token for window in windows for token in window.targets] == ids[1:]
    for window in windows:
        assert len(window.tokens) == len(window.targets) <= size
        assert window.tokens[0] == (window.targets[0] - 1 if bos is None else 0)
        assert list(window.tokens[1:]) == list(window.targets[:-1])


@pytest.mark.parametrize(
    ("length", "expected"),
    [
        (1, [0]),
        (128, [0]),
        (129, [0, 128]),
        (513, [0, 128, 512]),
        (5000, [0, 128, 512, 1024, 2048, 4096]),
    ],
)
def test_buckets(length: int, expected: list[int]) -> None:
    assert start_buckets(length) == expected


def test_the_bucket_of_a_position() -> None:
    positions = np.array([0, 127, 128, 511, 512, 9999])
    assert number_buckets([0, 128, 512], positions).tolist() == [0, 0, 1, 1, 2, 2]
