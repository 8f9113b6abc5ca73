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
    own = b'"version":%d}' % FORMAT_VERSION
    assert own in pack_kernels(PACK)
    data = pack_kernels(PACK).replace(own, b'"version":7}')

    with pytest.raises(UnsupportedError, match=f"version 7 .* reads version {FORMAT_VERSION}"):
        unpack_kernels(data)


def test_kernels_cut_short_are_refused():
    data = pack_kernels(PACK)
    for cut in range(len(data)):
        with pytest.raises(UnsupportedError, match="damaged"):
            unpack_kernels(data[:cut])
    with pytest.raises(UnsupportedError, match="damaged"):
        unpack_kernels(data + b"\0")


def test_no_byte_may_be_another():
    """Not in the header either, which has no checksum of zlib's."""
    data = pack_kernels(PACK)
    for place in range(len(data)):
        for bit in (0, 2, 7):
            broken = bytearray(data)
            broken[place] ^= 1 << bit
            with pytest.raises(UnsupportedError, match=r"damaged|version"):
                unpack_kernels(bytes(broken))


@pytest.mark.parametrize("header", [b"[]", b"1", b"null", b"[" * 100_000])
def test_a_header_of_another_kind_is_refused(header):
    data = b"quatrain-kernels\n" + len(header).to_bytes(8, "little") + header

    with pytest.raises(UnsupportedError, match="damaged"):
        unpack_kernels(data)
