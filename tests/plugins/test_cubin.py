"""Kernels in an engine's bytes: the way there and back, and what is refused."""

import pytest
from tests.plugins.twice import TwicePlugin

from quatrain.plugins.cubin import FORMAT_VERSION, Cubin, KernelPack, pack_kernels, unpack_kernels
from quatrain.plugins.definition import UnsupportedError

PACK = KernelPack(
    "8.6",
    ((4, 8), (1,)),
    tuple(
        Cubin(TwicePlugin(factor)._variant("float32"), f"entry_{factor}", 100, 128, image)
        for factor, image in ((0.1, b"\x7fELF one"), (2.0, b"\x7fELF the other"))
    ),
)


def test_kernels_come_back_as_they_were():
    assert unpack_kernels(pack_kernels(PACK)) == PACK


def test_another_version_names_both():
    data = pack_kernels(PACK).replace(b'"version":1}', b'"version":7}')

    with pytest.raises(UnsupportedError, match=f"version 7 .* reads version {FORMAT_VERSION}"):
        unpack_kernels(data)


@pytest.mark.parametrize("cut", [0, 3, 30, -1])
def test_damaged_kernels_are_refused(cut):
    with pytest.raises(UnsupportedError, match="damaged"):
        unpack_kernels(pack_kernels(PACK)[:cut])
