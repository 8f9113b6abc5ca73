"""Compiled kernels and all that launching them needs, as the bytes of one plugin field."""

import json
import zlib
from dataclasses import asdict, dataclass
from typing import Any

from quatrain.plugins.definition import UnsupportedError
from quatrain.plugins.launch import KernelVariant

__all__ = [
    "FORMAT_VERSION",
    "Cubin",
    "KernelPack",
    "pack_kernels",
    "read_variant",
    "unpack_kernels",
]

FORMAT_VERSION = 2
_MAGIC = b"quatrain-kernels\n"
_LENGTH_BYTES = 8
_CHECKSUM_BYTES = 4


@dataclass(frozen=True, slots=True)
class Cubin:
    """A kernel's variant, compiled for one compute capability."""

    variant: KernelVariant
    entry: str
    """Name of the function in `image`."""
    shared_bytes: int
    """Dynamic shared memory of a block."""
    threads: int
    """Of a block."""
    image: bytes


@dataclass(frozen=True, slots=True)
class KernelPack:
    """Everything a plugin's engine stores for it, but the attributes of its node."""

    sm: str
    """The compute capability that the cubins are for, as in "8.6"."""
    max_shapes: tuple[tuple[int, ...], ...]
    """The largest inputs that they were made for."""
    cubins: tuple[Cubin, ...]


def pack_kernels(pack: KernelPack) -> bytes:
    """A magic line, the length of a JSON header (8 bytes, little-endian), the header, the images,
    and the CRC-32 of all that (4 bytes).

    The images are compressed together: to about a quarter, since an engine holds them per layer.
    """
    facts = asdict(pack) | {"version": FORMAT_VERSION}
    for cubin in facts["cubins"]:
        cubin["image"] = len(cubin["image"])
    header = json.dumps(facts, separators=(",", ":")).encode()
    images = zlib.compress(b"".join(cubin.image for cubin in pack.cubins), 9)
    data = b"".join((_MAGIC, len(header).to_bytes(_LENGTH_BYTES, "little"), header, images))
    return data + zlib.crc32(data).to_bytes(_CHECKSUM_BYTES, "little")


def unpack_kernels(data: bytes) -> KernelPack:
    """The pack in `data`; `UnsupportedError` if it is of another version or not whole."""
    try:
        header, images = _split(data)
    except (ValueError, RecursionError) as error:
        raise _damage() from error
    if header.get("version") != FORMAT_VERSION:
        raise UnsupportedError(
            f"the kernels in the engine are stored in version {header.get('version')} of their "
            f"format, this quatrain reads version {FORMAT_VERSION}: build the engine again with it"
        )
    if zlib.crc32(data[:-_CHECKSUM_BYTES]) != int.from_bytes(data[-_CHECKSUM_BYTES:], "little"):
        raise _damage()
    images, start = zlib.decompress(images), 0
    cubins = []
    for facts in header["cubins"]:
        end = start + facts["image"]
        facts |= {"variant": read_variant(facts["variant"]), "image": images[start:end]}
        cubins.append(Cubin(**facts))
        start = end
    return KernelPack(header["sm"], tuple(map(tuple, header["max_shapes"])), tuple(cubins))


def read_variant(facts: dict[str, Any]) -> KernelVariant:
    """A variant from what `asdict` and JSON made of it."""
    constants = tuple((name, value) for name, value in facts["constants"])
    return KernelVariant(**facts | {"types": tuple(facts["types"]), "constants": constants})


def _split(data: bytes) -> tuple[dict[str, Any], bytes]:
    """The header and the images, still compressed."""
    start = len(_MAGIC) + _LENGTH_BYTES
    if not data.startswith(_MAGIC):
        raise ValueError("no magic line")
    end = start + int.from_bytes(data[len(_MAGIC) : start], "little")
    header = json.loads(data[start:end])
    if not isinstance(header, dict):
        raise ValueError("no header")
    return header, data[end:-_CHECKSUM_BYTES]


def _damage() -> UnsupportedError:
    return UnsupportedError("the kernels stored in the engine are damaged: build it again")
