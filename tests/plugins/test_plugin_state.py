"""What a plugin launches on a (stand-in) GPU, and what it refuses to."""

from dataclasses import replace

import pytest
import torch
from tests.plugins.fake_cuda import STREAM, FakeCuda
from tests.plugins.interpreter import get_facts
from tests.plugins.twice import BLOCK, TwicePlugin

from quatrain.plugins import cuda_launcher, plugin_state
from quatrain.plugins.cubin import Cubin, KernelPack, pack_kernels
from quatrain.plugins.cuda_launcher import CudaDriver
from quatrain.plugins.definition import UnsupportedError
from quatrain.plugins.plugin_state import PluginState

ROWS, COLUMNS = 40, 64


def make_cubin(scratch: int = 0, shared_bytes: int = 60_000) -> Cubin:
    variant = TwicePlugin(2.0, scratch)._variant("float32")
    return Cubin(variant, "twice_kernel", shared_bytes, 128, b"\x7fELF")


def make_state(cubins: list[Cubin], sm: str = "8.6", **attributes: float) -> PluginState:
    pack = KernelPack(sm, ((ROWS, COLUMNS),), tuple(cubins))
    return PluginState(TwicePlugin, {"factor": 2.0} | attributes, pack_kernels(pack))


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> FakeCuda:
    """A GPU of SM 8.6 that knows the kernel."""
    fake = FakeCuda("8.6", [make_cubin()])
    driver = CudaDriver(fake)
    monkeypatch.setattr(plugin_state, "open_driver", lambda: driver)
    return fake


def run(state: PluginState, cuda: FakeCuda, x: torch.Tensor, shift: int = 0) -> torch.Tensor:
    y, workspace = torch.full_like(x, torch.nan), torch.full_like(x, torch.nan)
    cuda.tensors = [x, y, workspace]
    addresses = [x.data_ptr() + shift, y.data_ptr(), workspace.data_ptr()]
    state.enqueue(("float32",), (tuple(x.shape),), addresses, STREAM)
    return y


@pytest.mark.parametrize("scratch", [0, 1])
def test_the_launches_of_a_plan_reach_the_device(cuda, scratch):
    state = make_state([make_cubin()], scratch=scratch)
    for rows in (1, 3, ROWS, 3):
        x = torch.randn(rows, COLUMNS)

        assert torch.equal(run(state, cuda, x), x * 2 ** (1 + scratch))

    grid = -(-ROWS * COLUMNS // BLOCK)
    assert cuda.launches.count(("twice_kernel", (grid, 1, 1), STREAM)) == 1 + scratch
    assert len(cuda.launches) == 4 * (1 + scratch)


@pytest.mark.parametrize("scratch", [0, 1])
def test_a_new_shape_of_many_layers_is_planned_once(cuda, monkeypatch, scratch):
    """And costs no layer more than writing its arguments: a growing mask brings many."""
    plans, prepared = [], []
    plan, make = TwicePlugin.plan, plugin_state.PreparedLaunch
    monkeypatch.setattr(TwicePlugin, "plan", lambda *a: plans.append(a) or plan(*a))
    monkeypatch.setattr(plugin_state, "PreparedLaunch", lambda *a: prepared.append(a) or make(*a))
    plugin_state._plan.cache_clear()
    layers = [make_state([make_cubin()], scratch=scratch) for _ in range(3)]
    for rows in range(1, 11):
        for layer in layers:
            x = torch.randn(rows, COLUMNS)
            assert torch.equal(run(layer, cuda, x), x * 2 ** (1 + scratch))

    assert len(plans) == 10
    assert len(prepared) == len(layers) * (1 + scratch)


def test_after_a_refused_shape_the_last_one_is_run_again(cuda):
    state = make_state([make_cubin()])
    for rows in (2, ROWS + 1, ROWS + 1, 2):
        x = torch.randn(rows, COLUMNS)
        if rows > ROWS:
            with pytest.raises(UnsupportedError, match="profile ends"):
                run(state, cuda, x)
        else:
            assert torch.equal(run(state, cuda, x), x * 2)


def test_equal_kernels_are_loaded_once(cuda):
    states = [make_state([make_cubin()]) for _ in range(3)]
    for state in [*states, *[state.clone() for state in states]]:
        state.load()

    assert cuda.loads == ["twice_kernel"]
    assert cuda.max_shared == {"twice_kernel": 60_000}


def test_little_shared_memory_is_not_asked_for(cuda):
    cuda.cubins = {b"\x7fELF": make_cubin(shared_bytes=1024)}
    make_state([make_cubin(shared_bytes=1024)]).load()

    assert cuda.max_shared == {}


def test_another_gpu_is_refused_by_name(cuda):
    with pytest.raises(UnsupportedError, match=r"SM 8\.0 only, this GPU is SM 8\.6"):
        make_state([make_cubin()], sm="8.0").load()


def test_a_misaligned_pointer_is_refused(cuda):
    with pytest.raises(UnsupportedError, match="aligned to 16 bytes; its argument 0 lies at"):
        run(make_state([make_cubin()]), cuda, torch.ones(2, COLUMNS), shift=4)
    assert cuda.launches == []


@pytest.mark.parametrize("shape", [(ROWS + 1, COLUMNS), (1, COLUMNS + 1), (1, 1, COLUMNS)])
def test_what_is_beyond_the_profile_is_refused(cuda, shape):
    with pytest.raises(UnsupportedError, match=r"input 0 is .* profile ends at \[40, 64\]"):
        run(make_state([make_cubin()]), cuda, torch.ones(shape))


def test_a_kernel_that_the_engine_lacks_is_named(cuda):
    other = replace(make_cubin(), variant=TwicePlugin(3.0)._variant("float32"))
    cuda.cubins = {other.image: other}

    with pytest.raises(UnsupportedError, match=r"without the kernel twice_kernel .*'factor': 2"):
        run(make_state([other]), cuda, torch.ones(1, COLUMNS))


def test_what_cuda_refuses_is_an_error(cuda):
    cuda.cubins = {}

    with pytest.raises(RuntimeError, match="CUDA: CUDA_ERROR_INVALID_VALUE"):
        make_state([make_cubin()]).load()


def test_kernels_are_compiled_only_while_an_engine_is_built():
    state = PluginState(TwicePlugin, {"factor": 2.0})
    state.configure(get_facts([torch.ones(1, 4)]))

    with pytest.raises(UnsupportedError, match="no GPU was named"):
        state.get_stored()


def test_without_cuda_python_the_way_to_it_is_named(monkeypatch: pytest.MonkeyPatch):
    def fail(name: str) -> object:
        raise ImportError(name)

    monkeypatch.setattr(cuda_launcher.importlib, "import_module", fail)

    with pytest.raises(UnsupportedError, match=r"pip install 'quatrain\[gpu\]'"):
        cuda_launcher.open_driver.__wrapped__()
