"""What `quatrain::BankTopKFeedForward` says of itself as a plugin."""

import pytest

from quatrain.plugins.bank_topk_ffn.few_rows import count_few_rows
from quatrain.plugins.bank_topk_ffn.plugin import BankTopKFeedForwardPlugin
from quatrain.plugins.definition import DType, OutputFacts, TensorFacts, UnsupportedError
from quatrain.plugins.launch import WORKSPACE, Pointer, Work

HIDDEN, RANK, CHANNELS = 576, 64, 1536
PLUGIN = BankTopKFeedForwardPlugin(64, 16)
Shapes = list[tuple[int, ...]]


def make_shapes(rows: tuple[int, int] = (1, 1)) -> Shapes:
    wide = [(CHANNELS, HIDDEN)] * 3
    return [(*rows, HIDDEN), (RANK, HIDDEN), (CHANNELS, RANK), *wide]


def make_facts(max_rows: tuple[int, int], dtype: DType = "bfloat16") -> list[TensorFacts]:
    shapes, most = make_shapes((-1, -1)), make_shapes(max_rows)
    return [TensorFacts(dtype, shape, top) for shape, top in zip(shapes, most, strict=True)]


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("bank", [(64, 16), (32, 8), (128, 32), (8, 1), (64, 64)])
@pytest.mark.parametrize("max_rows", [(1, 1), (2, 4), (1, 64), (1, 65), (4, 512)])
def test_every_plan_is_within_what_was_announced(dtype, bank, max_rows):
    plugin, facts = BankTopKFeedForwardPlugin(*bank), make_facts(max_rows, dtype)
    known, room = plugin.list_variants(facts), plugin.count_workspace_bytes(facts)
    assert len(known) == len(set(known)) <= 8
    used = set()
    for batch in range(1, max_rows[0] + 1):
        for rows in {1, 2, 3, 4, 5, 15, 16, 17, 63, 64, 65, max_rows[1]}:
            if rows > max_rows[1]:
                continue
            launches = plugin.plan([dtype] * 6, make_shapes((batch, rows)), 108)
            assert len(launches) == 3
            used |= {launch.variant for launch in launches}
            pointers = [a for launch in launches for a in launch.arguments]
            offsets = [
                p.offset_bytes for p in pointers if isinstance(p, Pointer) and p.tensor == WORKSPACE
            ]
            assert all(offset % 256 == 0 and offset < room for offset in offsets)
            assert all(size >= 1 for launch in launches for size in launch.grid)
    assert used <= set(known)
    assert used == set(known) or max_rows == (2, 4)


@pytest.mark.parametrize(
    ("bank", "rows"), [((64, 16), 4), ((64, 8), 8), ((64, 64), 1), ((128, 3), 42), ((64, 33), 1)]
)
def test_few_rows_never_read_more_than_all_weights(bank, rows):
    size, top_k = bank
    assert count_few_rows(size, top_k) == rows
    assert rows == 1 or rows * top_k <= size
    plugin = BankTopKFeedForwardPlugin(size, top_k)
    shapes = [(1, 1, 8), (4, 8), (2 * size, 4), *[(2 * size, 8)] * 3]
    for count, kernel in ((rows, "run_channels_kernel"), (rows + 1, "multiply_gate_up_kernel")):
        shapes[0] = (1, count, 8)
        assert plugin.plan(["float16"] * 6, shapes, 82)[1].variant.kernel == kernel


def test_a_plan_is_the_same_on_every_gpu():
    """So are its sums, which are made in the order of the plan."""
    for rows in (1, 4, 5, 100):
        plans = [PLUGIN.plan(["float16"] * 6, make_shapes((1, rows)), n) for n in (1, 82, 108, 132)]
        assert all(plan == plans[0] for plan in plans)


def test_one_row_of_a_large_network_keeps_every_multiprocessor_busy():
    shapes = [(1, 1, 4096), (256, 4096), (12288, 256), *[(12288, 4096)] * 3]
    launches = PLUGIN.plan(["bfloat16"] * 6, shapes, 108)
    assert [launch.grid for launch in launches] == [(1, 256, 1), (1, 192, 1), (1, 128, 1)]


def test_without_rows_nothing_is_launched():
    assert PLUGIN.plan(["float16"] * 6, make_shapes((1, 0)), 108) == []


def test_the_output_is_like_x():
    outputs = PLUGIN.describe_outputs(["float16"] * 6, [3, 2, 2, 2, 2, 2])
    assert outputs == [OutputFacts("float16", ((0, 0), (0, 1), (0, 2)))]


def test_work_of_one_row_is_that_of_its_active_channels():
    active, predictor = CHANNELS // 4, RANK * (HIDDEN + CHANNELS)
    weights = 3 * active * HIDDEN + predictor
    work = PLUGIN.count_work(["float16"] * 6, make_shapes())
    assert work == Work(2 * (weights + 2 * HIDDEN), 2 * weights)


def test_work_of_many_rows_is_that_of_all_channels():
    weights = 3 * CHANNELS * HIDDEN + RANK * (HIDDEN + CHANNELS)
    work = PLUGIN.count_work(["float32"] * 6, make_shapes((2, 50)))
    assert work == Work(4 * (weights + 200 * HIDDEN), 2 * 100 * weights)


def test_work_of_two_rows_counts_what_they_share_once():
    one, two = (PLUGIN.count_work(["float16"] * 6, make_shapes((1, n))) for n in (1, 2))
    shared = 2 * 3 * HIDDEN * CHANNELS // 16
    assert two.bytes_moved == 2 * one.bytes_moved - shared - 2 * RANK * (HIDDEN + CHANNELS)


@pytest.mark.parametrize(
    ("attributes", "found"),
    [
        ({"bank_size": 64, "top_k": 0}, "top_k 0 of banks of 64"),
        ({"bank_size": 64, "top_k": 65}, "top_k 65 of banks of 64"),
        ({"bank_size": 256, "top_k": 16}, "banks of up to 128 channels"),
        ({"bank_size": 64, "top_k": 16, "gate_mode": "tanh"}, "gate_mode is 'tanh'"),
        ({"bank_size": 64, "top_k": 16, "predictor_activation": "gelu"}, "'gelu', not one of none"),
    ],
)
def test_attributes_without_a_kernel_are_refused(attributes, found):
    with pytest.raises(UnsupportedError, match=found):
        BankTopKFeedForwardPlugin(**attributes)


def change(index: int, shape: tuple[int, ...]) -> list[TensorFacts]:
    facts = make_facts((1, 8))
    facts[index] = TensorFacts("bfloat16", shape, shape)
    return facts


@pytest.mark.parametrize(
    ("facts", "found"),
    [
        (make_facts((1, 8), "int64"), "x is int64"),
        ([*make_facts((1, 8))[:5], make_facts((1, 8), "float16")[5]], "down is float16: all must"),
        (make_facts((1, 8))[:5], "there are 5 inputs"),
        (change(0, (-1, -1, 575)), r"x is \[575\]"),
        (change(0, (-1, HIDDEN)), r"\[2, 2, 2, 2, 2, 2\] axes"),
        (change(1, (RANK + 1, HIDDEN)), r"predictor_0 is \[65, 576\]"),
        (change(3, (-1, HIDDEN)), "channels are no whole number|ask for"),
        (change(5, (HIDDEN, CHANNELS)), r"down is \[576, 1536\].* ask for \[1536, 576\]"),
    ],
)
def test_inputs_that_do_not_go_together_are_refused(facts, found):
    with pytest.raises(UnsupportedError, match=found):
        PLUGIN.check(facts)


@pytest.mark.parametrize(
    ("bank", "rank", "channels", "hidden", "found"),
    [
        ((1, 1), 8, 65536, 8, "65,536 banks; the kernels take 65,535"),
        ((5, 5), 8, 131075, 8, "131,075 channels; the kernels take 131,072"),
        ((64, 16), 65536, 64, 8, "65,536 ranks of the predictor"),
        ((64, 16), 32768, 65536, 8, "2,147,483,648 weights in a layer of the predictor"),
        ((64, 16), 32768, 64, 65536, "2,147,483,648 weights in a layer of the predictor"),
    ],
)
def test_what_a_grid_or_an_int32_cannot_count_is_refused(bank, rank, channels, hidden, found):
    matrix = (channels, hidden)
    shapes = [(1, 8, hidden), (rank, hidden), (channels, rank), matrix, matrix, matrix]
    with pytest.raises(UnsupportedError, match=found):
        BankTopKFeedForwardPlugin(*bank).check([TensorFacts("float16", s, s) for s in shapes])


@pytest.mark.parametrize("bank_size", range(1, 129))
def test_the_most_channels_fit_a_grid(bank_size):
    channels = min(131072 // bank_size, 65535) * bank_size
    shapes = [(1, 1, 8), (4, 8), (channels, 4), *[(channels, 8)] * 3]
    for top_k in {1, bank_size // 4 or 1, min(5, bank_size), bank_size}:
        plugin = BankTopKFeedForwardPlugin(bank_size, top_k)
        for rows in (1, 1000):
            launches = plugin.plan(["float16"] * 6, [(1, rows, 8), *shapes[1:]], 108)
            assert all(max(launch.grid[1:]) <= 65535 for launch in launches)


def test_a_network_of_other_banks_is_refused():
    with pytest.raises(UnsupportedError, match="1536 channels are no whole number of banks of 100"):
        BankTopKFeedForwardPlugin(100, 16).check(make_facts((1, 8)))
