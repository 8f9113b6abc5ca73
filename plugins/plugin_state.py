"""What one plugin knows and does, said without TensorRT: `tensorrt_plugin.py` is its face there."""

import functools
from collections.abc import Mapping, Sequence

from quatrain.plugins.build_target import get_build_sm
from quatrain.plugins.compiler import get_cubins
from quatrain.plugins.cubin import KernelPack, pack_kernels, unpack_kernels
from quatrain.plugins.cuda_launcher import CudaDriver, LoadedKernel, PreparedLaunch, open_driver
from quatrain.plugins.definition import (
    AttributeValue,
    Definition,
    DefinitionFactory,
    DType,
    TensorFacts,
    UnsupportedError,
)
from quatrain.plugins.launch import KernelVariant, Launch

__all__ = ["PluginState"]

Shapes = tuple[tuple[int, ...], ...]

_MAX_REMEMBERED = 256


class PluginState:
    """A node's operator with its attributes, and its kernels: to be compiled, stored, launched.

    Args:
        stored: The kernels as an engine has them; None while one is built.
    """

    def __init__(
        self,
        factory: DefinitionFactory,
        attributes: Mapping[str, AttributeValue],
        stored: bytes | None = None,
    ) -> None:
        self.factory = factory
        self.attributes = dict(attributes)
        self.definition: Definition = factory(**self.attributes)
        self.dtypes: tuple[DType, ...] | None = None
        """Of inputs and outputs, once TensorRT has told."""
        self._inputs: list[TensorFacts] | None = None
        self._stored = stored
        self._pack = None if stored is None else unpack_kernels(stored)
        self._driver: CudaDriver | None = None
        self._kernels: dict[KernelVariant, LoadedKernel] = {}
        self._prepared: dict[Shapes, list[PreparedLaunch]] = {}

    def clone(self) -> "PluginState":
        """The same operator and kernels, with launches of its own."""
        cloned = PluginState(self.factory, self.attributes)
        cloned.dtypes, cloned._inputs = self.dtypes, self._inputs
        cloned._stored, cloned._pack = self._stored, self._pack
        return cloned

    def configure(self, inputs: Sequence[TensorFacts]) -> None:
        """The inputs that one profile allows; `UnsupportedError` if there is no kernel for them."""
        self.definition.check(inputs)
        self._inputs = list(inputs)

    def get_stored(self) -> bytes:
        """The kernels for one profile, to be stored in the engine: compiled, if need be."""
        if self._stored is None:
            self._stored = pack_kernels(self._get_pack())
        return self._stored

    def load(self) -> None:
        """Load the kernels; `UnsupportedError` if they are for another GPU than this one."""
        pack = self._get_pack()
        driver = open_driver()
        if driver.sm != pack.sm:
            raise UnsupportedError(
                f"the engine has kernels for SM {pack.sm} only, this GPU is SM {driver.sm}: "
                "build an engine for it"
            )
        self._kernels = {cubin.variant: driver.load(cubin) for cubin in pack.cubins}
        self._driver = driver

    def enqueue(
        self, dtypes: tuple[DType, ...], shapes: Shapes, addresses: Sequence[int], stream: int
    ) -> None:
        """Queue the launches of one call. Allocates no device memory and does not wait.

        Args:
            dtypes: Of the inputs.
            shapes: Of the inputs.
            addresses: Of inputs, outputs and workspace.
        """
        prepared = self._prepared.get(shapes)
        if prepared is None:
            prepared = self._prepare(dtypes, shapes)
        for launch in prepared:
            launch.run(addresses, stream)

    def _get_pack(self) -> KernelPack:
        if self._pack is None:
            inputs = self._inputs
            if inputs is None:
                raise UnsupportedError("TensorRT did not say what its inputs are")
            sm = get_build_sm()
            cubins = get_cubins(self.definition.list_variants(inputs), sm)
            self._pack = KernelPack(sm, tuple(fact.max_shape for fact in inputs), tuple(cubins))
        return self._pack

    def _prepare(self, dtypes: tuple[DType, ...], shapes: Shapes) -> list[PreparedLaunch]:
        _check_profile(shapes, self._get_pack().max_shapes)
        if self._driver is None:
            self.load()
        assert self._driver is not None
        plan = _plan(self.definition, dtypes, shapes, self._driver.num_multiprocessors)
        prepared = [self._prepare_launch(launch) for launch in plan]
        # Few shapes come back, since the length of a mask grows with every token.
        if len(self._prepared) >= _MAX_REMEMBERED:
            self._prepared.clear()
        self._prepared[shapes] = prepared
        return prepared

    def _prepare_launch(self, launch: Launch) -> PreparedLaunch:
        assert self._driver is not None
        kernel = self._kernels.get(launch.variant)
        if kernel is None:
            raise UnsupportedError(
                f"the engine was built without the kernel {launch.variant.kernel} "
                f"{dict(launch.variant.constants)}: build it again with this quatrain"
            )
        return PreparedLaunch(self._driver, kernel, launch)


def _check_profile(shapes: Shapes, most: Shapes) -> None:
    for index, (shape, limit) in enumerate(zip(shapes, most, strict=True)):
        if len(shape) != len(limit) or any(map(int.__gt__, shape, limit)):
            raise UnsupportedError(
                f"input {index} is {list(shape)}, the engine's profile ends at {list(limit)}"
            )


# Layers share plans: equal operators with equal shapes launch alike.
@functools.lru_cache(maxsize=1024)
def _plan(
    definition: Definition, dtypes: tuple[DType, ...], shapes: Shapes, num_multiprocessors: int
) -> tuple[Launch, ...]:
    return tuple(definition.plan(dtypes, shapes, num_multiprocessors))
