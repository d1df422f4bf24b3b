"""A sample as a tf.train.Example, the protocol buffer that TFRecord files hold.

    Example { Features features = 1; }    Features { map<string, Feature> feature = 1; }
    Feature { oneof: BytesList bytes_list = 1; FloatList float_list = 2; Int64List int64_list = 3; }
    ...List { repeated ... value = 1; }   numbers packed or not

What is written are features of one value of bytes each, called like the suffixes, and the sample's name, `__key__`. Of
what others wrote, features of one value of bytes are files alike, several are `NAME.0`, `NAME.1`, ...; numbers are what
`NAME.flat.npy` would hold.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator, Sequence

import numpy

from placer.runtime.data.shards.sample_files import FLAT, Files

KEY = "__key__"
# The bytes of a feature's tags and lengths, and of those around all features, at most: lengths below 2**35 take 5.
FEATURE, EXAMPLE = 5 * 6, 6
_VARINT, _EIGHT, _BYTES, _FOUR = 0, 1, 2, 5  # how values are laid out, the lower three bits of a tag


def encoded(key: str, files: Files) -> bytes:
    """The Example of a sample."""
    features = ((KEY, key.encode()), *files.items())
    return _field(1, b"".join(_field(1, _field(1, name.encode()) + _feature(content)) for name, content in features))


def room(key: str, sizes: Sequence[tuple[str, int]]) -> int:
    """Bytes of an Example, at most."""
    features = ((KEY, len(key.encode())), *sizes)
    return EXAMPLE + sum(FEATURE + len(name.encode()) + size for name, size in features)


def decoded(content: bytes) -> tuple[str | None, Files]:
    """The name and the files of a sample. Raises ValueError for what is no Example."""
    found = Files()
    for features in _values(memoryview(content), 1):
        for entry in _values(features, 1):
            name = b"".join(_values(entry, 1)).decode()
            for feature in _values(entry, 2):
                found |= _files(name, feature)
    key = found.pop(KEY, None)
    return (None if key is None else key.decode()), found


def _files(name: str, feature: memoryview) -> Files:
    contents = [bytes(value) for values in _values(feature, 1) for value in _values(values, 1)]
    if contents:
        return {name: contents[0]} if len(contents) == 1 else {f"{name}.{n}": one for n, one in enumerate(contents)}
    floats = [numpy.frombuffer(part, "<f4") for values in _values(feature, 2) for part in _values(values, 1)]
    numbers = [_varints(part) for values in _values(feature, 3) for part in _values(values, 1)]
    if not floats and not numbers:
        return {}
    array = io.BytesIO()
    numpy.save(array, numpy.concatenate(floats) if floats else numpy.concatenate(numbers), allow_pickle=False)
    return {f"{name}{FLAT}": array.getvalue()}


def _values(message: memoryview, wanted: int) -> Iterator[memoryview]:
    """The bytes of each value of a field, of numbers as they are packed. Raises ValueError where it is cut off."""
    at = 0
    while at < len(message):
        tag, at = _varint(message, at)
        field, kind = tag >> 3, tag & 7
        if kind == _BYTES:
            size, at = _varint(message, at)
        elif kind == _VARINT:
            size = _varint(message, at)[1] - at
        elif kind in (_EIGHT, _FOUR):
            size = 8 if kind == _EIGHT else 4
        else:
            raise ValueError(f"a field of unknown kind {kind}")
        if at + size > len(message):
            raise ValueError("it is cut off")
        if field == wanted:
            yield message[at : at + size]
        at += size


def _varint(message: memoryview, at: int) -> tuple[int, int]:
    """The number that begins there, and where the next thing does."""
    value = 0
    for shift in range(0, 70, 7):
        if at >= len(message):
            raise ValueError("it is cut off")
        byte = message[at]
        value, at = value | (byte & 127) << shift, at + 1
        if byte < 128:
            return value, at
    raise ValueError("a number of more than ten bytes")


def _varints(packed: memoryview) -> numpy.ndarray[tuple[int], numpy.dtype[numpy.int64]]:
    """The numbers of packed varints: seven bits a byte, the lowest first; the last byte of each is below 128."""
    content = numpy.frombuffer(packed, numpy.uint8)
    if not len(content):
        return numpy.zeros(0, numpy.int64)
    starts = numpy.concatenate([[0], numpy.flatnonzero(content < 128) + 1])
    lengths = numpy.diff(starts)
    if starts[-1] != len(content) or lengths.max() > 10:
        raise ValueError("numbers that are cut off")
    shifts = 7 * (numpy.arange(len(content)) - numpy.repeat(starts[:-1], lengths)).astype(numpy.uint64)
    bits = (content & 127).astype(numpy.uint64) << shifts
    return numpy.add.reduceat(bits, starts[:-1]).view(numpy.int64)


def _feature(content: bytes) -> bytes:
    """Field 2 of a feature's entry: a list of one value."""
    return _field(2, _field(1, _field(1, content)))


def _field(number: int, content: bytes) -> bytes:
    return bytes((*_encoded(number << 3 | _BYTES), *_encoded(len(content)))) + content


def _encoded(value: int) -> Iterable[int]:
    while value > 127:
        yield value & 127 | 128
        value >>= 7
    yield value
