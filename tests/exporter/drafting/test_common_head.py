"""The rows of a head that a training looks at."""

import numpy as np
import pytest

from quatrain.exporter.drafting import common_head
from quatrain.exporter.drafting.common_head import cut_head


def test_rows_are_those_of_the_most_frequent_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    head = np.random.default_rng(0).standard_normal((8, 3)).astype(np.float16)
    token_ids = np.array([[5, 5, 2, 7], [2, 5, 1, 7]])
    assert np.array_equal(cut_head(head, token_ids), head[[1, 2, 5, 7]].astype(np.float32))
    monkeypatch.setattr(common_head, "_MOST_TOKENS", 3)
    assert np.array_equal(cut_head(head, token_ids), head[[2, 5, 7]].astype(np.float32))
