"""The way the tests run and compile kernels finds what it should."""

import pytest
import torch
from tests.plugins.compiled import compile_report
from tests.plugins.interpreter import get_facts, run_plan
from tests.plugins.twice import BLOCK, TwicePlugin

from quatrain.plugins.definition import DefinitionFactory
from quatrain.plugins.launch import Launch, Pointer

FACTORY: DefinitionFactory = TwicePlugin  # mypy: it is one


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("shape", [(1, 1), (3, 5), (2, BLOCK)])
def test_a_plan_runs_in_the_interpreter(dtype, shape):
    x = torch.randn(shape).to(dtype)

    assert torch.equal(run_plan(TwicePlugin(factor=2.0), [x])[0], x * 2)


def test_a_plan_may_use_the_workspace():
    x = torch.randn(3, 7)

    assert torch.equal(run_plan(TwicePlugin(factor=2.0, scratch=1), [x])[0], x * 4)


class TooFar(TwicePlugin):
    def plan(self, dtypes: object, shapes: object, num_multiprocessors: int) -> list[Launch]:
        return [Launch(self._variant("float32"), (1, 1, 1), (Pointer(0), Pointer(1), 16))]


def test_writing_beside_an_output_is_found():
    with pytest.raises(AssertionError, match="out of bounds"):
        run_plan(TooFar(factor=2.0), [torch.ones(3, 5)])


class Backwards(TwicePlugin):
    def plan(self, dtypes: object, shapes: object, num_multiprocessors: int) -> list[Launch]:
        return [Launch(self._variant("float32"), (1, 1, 1), (Pointer(1), Pointer(0), 15))]


def test_writing_to_an_input_is_found():
    with pytest.raises(AssertionError):
        run_plan(Backwards(factor=2.0), [torch.ones(3, 5)])


@pytest.mark.parametrize("sm", ["8.0", "8.6", "9.0"])
def test_wide_loads_are_seen(sm):
    variants = TwicePlugin(factor=2.0).list_variants(get_facts([torch.ones(1, 8).half()]))

    report = compile_report(variants, sm)[0]

    assert (report.local_bytes, report.shared_bytes) == (0, 0)
    assert 8 <= report.registers <= 64
    assert set(report.load_bytes) <= {2, 16} and report.load_bytes
    assert report.cubin_bytes > 1000
