"""What the plugin of `quatrain::ExitRouter` takes, plans and compiles to, without a GPU."""

from dataclasses import replace

import pytest
from tests.plugins.compiled import compile_report

from quatrain.plugins.compiler import SHARED_MEMORY
from quatrain.plugins.definition import DType, OutputFacts, TensorFacts, UnsupportedError
from quatrain.plugins.exit_router.plugin import ExitRouterPlugin
from quatrain.plugins.launch import WORKSPACE, Pointer

PLUGIN = ExitRouterPlugin(epsilon=1e-5, temperature=1.0)
SMALL, LARGE = (96, 64, 96), (768, 512, 768)


def make_facts(
    sizes: tuple[int, int, int] = SMALL,
    num_blocks: int = 1,
    dtype: DType = "float16",
    max_leading: tuple[int, ...] = (4, 8),
) -> list[TensorFacts]:
    """Inputs of a node with dynamic leading axes and `sizes` (hidden, inner, router)."""
    hidden, inner, router = sizes
    shapes = [(hidden,)]
    for j in range(num_blocks):
        shapes += [(inner, router if j else hidden), (inner,), (router, inner), (router,)]
    shapes += [(router,), (2, router), (2,)]
    state = TensorFacts(dtype, (*(-1 for _ in max_leading), hidden), (*max_leading, hidden))
    return [state, *(TensorFacts(dtype, shape, shape) for shape in shapes)]


def test_outputs_follow_the_state():
    facts = make_facts(dtype="bfloat16")
    outputs = PLUGIN.describe_outputs([f.dtype for f in facts], [len(f.shape) for f in facts])
    assert outputs == [
        OutputFacts("bfloat16", ((0, 0), (0, 1), (0, 2))),
        OutputFacts("float32", ((0, 0), (0, 1), 2)),
    ]


@pytest.mark.parametrize("sizes", [SMALL, LARGE])
@pytest.mark.parametrize("num_blocks", [1, 2, 4])
@pytest.mark.parametrize("num_multiprocessors", [1, 108])
def test_whatever_is_planned_is_listed(
    sizes: tuple[int, int, int], num_blocks: int, num_multiprocessors: int
):
    facts = make_facts(sizes, num_blocks)
    variants = PLUGIN.list_variants(facts)
    assert len(variants) <= 8
    workspace = PLUGIN.count_workspace_bytes(facts)
    for batch, rows in [(1, 1), (1, 2), (4, 8), (3, 5)]:
        shapes = [(batch, rows, sizes[0]), *(f.shape for f in facts[1:])]
        for launch in PLUGIN.plan([f.dtype for f in facts], shapes, num_multiprocessors):
            assert launch.variant in variants
            for argument in launch.arguments:
                if isinstance(argument, Pointer) and argument.tensor == WORKSPACE:
                    assert argument.offset_bytes % 256 == 0
                    widest = max(sizes[1], sizes[2])
                    assert argument.offset_bytes + 4 * batch * rows * min(sizes[1:]) <= workspace
                    assert workspace <= 2 * (4 * 32 * widest + 256)


def test_one_row_at_most_needs_no_kernel_for_more():
    few = PLUGIN.list_variants(make_facts(max_leading=(1, 1)))
    assert len(few) == 1 and dict(few[0].constants)["rows"] == 1


@pytest.mark.parametrize("attributes", [(-1.0, 1.0), (1e-5, 0.0), (1e-5, float("nan"))])
def test_attributes_without_meaning_are_refused(attributes: tuple[float, float]):
    with pytest.raises(UnsupportedError, match=r"epsilon -1\.0|temperature (0\.0|nan)"):
        ExitRouterPlugin(*attributes)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda facts: facts[:-1], "8 inputs, which must be"),
        (lambda facts: make_facts(num_blocks=5), "25 inputs, which must be"),
        (lambda facts: [*facts[:-1], replace(facts[-1], dtype="float32")], "float16, float32"),
        (lambda facts: [replace(f, dtype="int64") for f in facts], "inputs of type int64"),
        (lambda facts: swap(facts, 0, ()), "hidden is a single number"),
        (lambda facts: swap(facts, 2, (64,)), r"first layer's weight is \[64\]"),
        (lambda facts: swap(facts, 4, (96, 65)), r"input 4 is \[96, 65\].*\[96, 64\]"),
        (lambda facts: swap(facts, 1, (-1,)), r"input 1 is \[-1\]"),
        (lambda facts: make_facts((8200, 8, 8)), "a layer of width 8200"),
    ],
)
def test_inputs_without_kernels_are_refused(change, words: str):
    PLUGIN.check(make_facts())
    with pytest.raises(UnsupportedError, match=words):
        PLUGIN.check(change(make_facts()))


def swap(facts: list[TensorFacts], index: int, shape: tuple[int, ...]) -> list[TensorFacts]:
    facts[index] = TensorFacts(facts[index].dtype, shape, shape)
    return facts


def test_work_counts_every_weight_once():
    facts = make_facts(LARGE)
    shapes = [(1, 1, 768), *(f.shape for f in facts[1:])]
    work = PLUGIN.count_work([f.dtype for f in facts], shapes)
    matrices = 768 * 512 * 2 + 2 * 768
    vectors = 768 + 512 + 768 + 768 + 2
    assert work.flops == 2 * matrices
    assert work.bytes_moved == 2 * (matrices + vectors) + 2 * 2 * 768 + 8


@pytest.mark.parametrize("sm", ["8.0", "8.6", "9.0"])
def test_kernels_compile_without_spills_and_with_wide_loads(sm: str):
    cases = [
        make_facts(SMALL, 4, "float32"),
        make_facts((4096, 2736, 4096), 1, "bfloat16"),
        make_facts(LARGE, 1, "float32"),
    ]
    variants = [variant for facts in cases for variant in PLUGIN.list_variants(facts)]
    for report in compile_report(list(dict.fromkeys(variants)), sm):
        assert report.local_bytes == 0, report.variant
        assert report.shared_bytes <= SHARED_MEMORY[sm]
        assert max(report.load_bytes) == 16, report.variant
