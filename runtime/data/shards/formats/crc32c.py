"""CRC-32C (Castagnoli) of bytes, as TFRecord files hold it, by tables of numpy.

A CRC without its first and last inversion is linear over GF(2): that of a block is the XOR of what each byte gives at
its place, one look-up a byte; blocks are joined by moving what came before a block's length on, four look-ups a block.
"""

from __future__ import annotations

import struct
from functools import lru_cache

import numpy

Table = numpy.ndarray[tuple[int, int], numpy.dtype[numpy.uint32]]

POLYNOMIAL = 0x82F63B78  # reflected; RFC 3720, B.4
MASK = 0xA282EAD8  # what TFRecord adds to a rotated CRC, tensorflow/core/lib/hash/crc32c.h
# Bytes of a block: its table of 1 MiB lies in the cache of a core.
BLOCK = 1024
# Blocks that are looked up at once, whose places take 8 bytes a byte.
AT_ONCE = 256
_ONES = 0xFFFFFFFF


def masked_crc(content: bytes) -> int:
    """The CRC of `content` as TFRecord files hold it."""
    crc = crc32c(content)
    return ((crc >> 15 | crc << 17) + MASK) & _ONES


def crc32c(content: bytes) -> int:
    """The CRC-32C of `content`."""
    # The first inversion is that of the first four bytes; what is shorter is gone through byte by byte.
    if len(content) < 4:
        return _bytewise(content)
    head = struct.pack("<I", struct.unpack_from("<I", content)[0] ^ _ONES)
    padding = bytes(-len(content) % BLOCK)  # zeros before the first byte change nothing
    padded = numpy.frombuffer(b"".join((padding, head, memoryview(content)[4:])), numpy.uint8).reshape(-1, BLOCK)
    flat, offsets, (a, b, c, d) = _places().reshape(-1), 256 * numpy.arange(BLOCK), _moved()
    crc = 0
    for first in range(0, len(padded), AT_ONCE):
        given = flat.take(padded[first : first + AT_ONCE] + offsets)
        for block in numpy.bitwise_xor.reduce(given, axis=1).tolist():
            crc = a[crc & 255] ^ b[crc >> 8 & 255] ^ c[crc >> 16 & 255] ^ d[crc >> 24] ^ block
    return int(crc ^ _ONES)


def _bytewise(content: bytes) -> int:
    crc, last = _ONES, _places()[BLOCK - 1].tolist()
    for byte in content:
        crc = last[(crc ^ byte) & 255] ^ crc >> 8
    return int(crc ^ _ONES)


@lru_cache(maxsize=1)
def _places() -> Table:
    """What a byte gives at each place of a block: BLOCK x 256."""
    crc = numpy.arange(256, dtype=numpy.uint32)
    for _ in range(8):
        crc = numpy.where(crc & 1, crc >> 1 ^ numpy.uint32(POLYNOMIAL), crc >> 1).astype(numpy.uint32)
    last = crc
    places = numpy.empty((BLOCK, 256), numpy.uint32)
    for place in reversed(range(BLOCK)):
        places[place] = crc
        crc = last[crc & 255] ^ crc >> 8
    return places


@lru_cache(maxsize=1)
def _moved() -> tuple[list[int], ...]:
    """What each of the four bytes of a CRC is after a block of zeros: as if they were that block's first bytes."""
    return tuple(_places()[place].tolist() for place in range(4))
