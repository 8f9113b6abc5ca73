"""Bills of memory, as they are told."""

import pytest

from quatrain.exporter.commands.memory_facts import describe_cache, describe_weights, format_kib
from quatrain.exporter.memory import CacheBill, WeightBill

GRAPH = WeightBill("graph", 25_100_000_000, 0, 50_200_000_000, 0, False)
HOST = WeightBill("host", 15_100_000_000, 10_000_000_000, 40_200_000_000, 8, False)
TIED = WeightBill("host", 1000, 200, 2200, 1, True)


def test_both_places_are_told_and_the_chosen_one_is_marked() -> None:
    assert describe_weights([GRAPH, HOST], "host") == {
        "--embeddings graph": "25.1 GB of weights in engines, 0 B on the host",
        "--embeddings host": "15.1 GB of weights in engines, 10.0 GB on the host (8 tables)"
        " (chosen)",
    }
    assert not any("chosen" in text for text in describe_weights([GRAPH, HOST]).values())


def test_a_table_that_is_also_the_head_is_said_to_stay() -> None:
    (text,) = describe_weights([TIED]).values()
    assert "(1 table)" in text and text.endswith("stays in the engine as the head")


@pytest.mark.parametrize(
    ("bill", "text"),
    [
        (CacheBill(8, 147_456, 36, 0, 1_179_648), "1152 KiB a token: 8 rows of 144 KiB"),
        (CacheBill(1, 1280, 5, 0, 1280), "1.25 KiB a token"),
        (
            CacheBill(4, 4096, 4, 2, 10_240),
            "10 KiB a token: 4 rows of 4 KiB, but 1 row in 2 of 4 layers",
        ),
    ],
)
def test_how_the_cache_of_a_token_comes_about(bill: CacheBill, text: str) -> None:
    assert describe_cache(bill) == text


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0 B"), (512, "512 B"), (1536, "1.5 KiB"), (102_400, "100 KiB"), (1 << 20, "1024 KiB")],
)
def test_kibibytes(count: int, text: str) -> None:
    assert format_kib(count) == text
