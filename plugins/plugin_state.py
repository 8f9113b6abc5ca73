"""What one plugin knows and does, said without TensorRT: `tensorrt_plugin.py` is its face there."""

import functools
from collections.abc import Mapping, Sequence

from quatrain.plugins.build_target import get_build_sm
from quatrain.plugins.compiler import get_cubins
from quatrain.plugins.cubin import KernelPack, pack_kernels, unpack_kernels
from quatrain.plugins.cuda_launcher import (
    CudaDriver,
    LoadedKernel,
    PackedLaunch,
    PreparedLaunch,
    open_driver,
    pack_launch,
)
from quatrain.plugins.definition import (
    AttributeValue,
    Definition,
    DefinitionFactory,
    DType,
    TensorFacts,
    UnsupportedError,
)
from quatrain.plugins.launch import KernelVariant

__all__ = ["PluginState"]

Shapes = tuple[tuple[int, ...], ...]


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
        self._num_multiprocessors = 0
        # By place in a plan and variant: shapes come and go, of these there are few.
        self._prepared: dict[tuple[int, KernelVariant], PreparedLaunch] = {}
        self._shapes: Shapes | None = None
        self._launches: list[PreparedLaunch] = []
        """Those for `_shapes`."""

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
        self._num_multiprocessors = driver.num_multiprocessors
        self._driver = driver
        self._prepared.clear()
        self._shapes = None

    def enqueue(
        self, dtypes: tuple[DType, ...], shapes: Shapes, addresses: Sequence[int], stream: int
    ) -> None:
        """Queue the launches of one call. Allocates no device memory and does not wait.

        Args:
            dtypes: Of the inputs.
            shapes: Of the inputs.
            addresses: Of inputs, outputs and workspace.
        """
        if shapes != self._shapes:
            self._settle(dtypes, shapes)
        for launch in self._launches:
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

    def _settle(self, dtypes: tuple[DType, ...], shapes: Shapes) -> None:
        self._shapes = None
        if self._driver is None:
            self.load()
        most = self._get_pack().max_shapes
        plan = _plan(self.definition, dtypes, shapes, most, self._num_multiprocessors)
        self._launches = [self._settle_launch(*item) for item in enumerate(plan)]
        self._shapes = shapes

    def _settle_launch(self, place: int, packed: PackedLaunch) -> PreparedLaunch:
        key = place, packed.variant
        prepared = self._prepared.get(key)
        if prepared is not None:
            prepared.settle(packed)
            return prepared
        assert self._driver is not None
        kernel = self._kernels.get(packed.variant)
        if kernel is None:
            raise UnsupportedError(
                f"the engine was built without the kernel {packed.variant.kernel} "
                f"{dict(packed.variant.constants)}: build it again with this quatrain"
            )
        return self._prepared.setdefault(key, PreparedLaunch(self._driver, kernel, packed))


def _check_profile(shapes: Shapes, most: Shapes) -> None:
    for index, (shape, limit) in enumerate(zip(shapes, most, strict=True)):
        if len(shape) != len(limit) or any(map(int.__gt__, shape, limit)):
            raise UnsupportedError(
                f"input {index} is {list(shape)}, the engine's profile ends at {list(limit)}"
            )


# Layers share plans: equal operators with equal shapes launch alike. Few shapes come back, since
# masks grow while tokens are decoded.
@functools.lru_cache(maxsize=256)
def _plan(
    definition: Definition,
    dtypes: tuple[DType, ...],
    shapes: Shapes,
    most: Shapes,
    num_multiprocessors: int,
) -> tuple[PackedLaunch, ...]:
    _check_profile(shapes, most)
    return tuple(map(pack_launch, definition.plan(dtypes, shapes, num_multiprocessors)))
