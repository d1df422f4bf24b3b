"""What may be wrong with the index of a checkpoint, a pickle that torch wrote: other numbers in it, or a command."""

from __future__ import annotations

import io
import os
import pickle
import struct
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from random import Random

import torch
from torch.distributed.checkpoint.metadata import BytesStorageMetadata, Metadata, TensorStorageMetadata

NAMES = (
    "../spoilt",
    "/etc/passwd",
    "",
    ".",
    "a\x00b",
    "__9_9.distcp",
    ".metadata",
    "complete.json",
    "\x1b[2J",
    "x" * 300,
)
SIZES = (-1, 0, 1, 3, 2**31, 2**62, 2**63 - 1)
DTYPES = (torch.float64, torch.int8, torch.bool, torch.complex64, torch.float16)


def spoiled_index(content: bytes, random: Random, canary: str) -> bytes:
    """Another index: torch's own with something else in it, a pickle that makes the folder `canary`, or a bomb."""
    pick = random.randrange(4)
    if pick == 0:
        return random.choice(_CRAFTED)(content, canary)
    if pick == 1:
        return random.choice(_BOMBS)
    index = pickle.loads(content)
    for _ in range(random.choice((1, 1, 2))):
        with suppress(AttributeError, TypeError, ValueError, LookupError):  # the second finds what the first has left
            random.choice(_CHANGES)(index, random)
    return pickle.dumps(index)


class _Calls:
    """Pickled as a call of `function`."""

    def __init__(self, function: Callable[..., object], *arguments: object) -> None:
        self.called = function, arguments

    def __reduce__(self) -> tuple[Callable[..., object], tuple[object, ...]]:
        return self.called


def _whole(_: bytes, canary: str) -> bytes:
    return pickle.dumps(_Calls(os.mkdir, canary))


def _evaluated(_: bytes, canary: str) -> bytes:
    return pickle.dumps(_Calls(eval, f"__import__('os').mkdir({canary!r})"))


def _within(content: bytes, canary: str) -> bytes:
    """A sound index, in which one thing that nobody reads is a call."""
    index = pickle.loads(content)
    index.planner_data = _Calls(os.mkdir, canary)
    return pickle.dumps(index)


def _before(content: bytes, canary: str) -> bytes:
    """A call whose result is dropped, and a sound index after it."""
    call = pickle.dumps(_Calls(os.mkdir, canary), protocol=2)
    return call[:-1] + pickle.POP + content[2:]


def _old(_: bytes, canary: str) -> bytes:
    return f"cposix\nmkdir\n(V{canary}\ntR.".encode()


def _dotted(_: bytes, canary: str) -> bytes:
    """A name with dots, which leads out of the module that may be named."""
    names = (b"torch.distributed.checkpoint.filesystem", b"os.mkdir")
    found = b"".join(b"\x8c" + bytes([len(name)]) + name for name in names)
    path = canary.encode()
    return b"\x80\x04" + found + b"\x93\x8c" + bytes([len(path)]) + path + b"\x85R."


def _attribute(_: bytes, canary: str) -> bytes:
    """Attributes of a class that stays, set by what looks like a state."""
    return (
        b"\x80\x04ctorch.distributed.checkpoint.metadata\nMetadata\n}(X\x07\x00\x00\x00spoiltsX\x01\x00\x00\x00xu\x86b."
    )


_CRAFTED: tuple[Callable[[bytes, str], bytes], ...] = (_whole, _evaluated, _within, _before, _old, _dotted, _attribute)
_BOMBS = (
    b"\x80\x04Nr" + struct.pack("<I", 2**32 - 1) + b".",  # a place in the memo that asks for 64 GiB
    b"\x80\x04\x8e" + struct.pack("<Q", 2**40) + b"x.",  # bytes of a TiB that are not there
    b"\x80\x04\x95" + struct.pack("<Q", 2**62) + b"N.",
    b"\x80\x04" + b"]" * 100_000 + b"a" * 99_999 + b".",
    b"\x80\x04" + b"(" * 1_000_000 + b".",
    b"\x80\x04]" + b"(" + b"h\x00" * 10 + b"e.",
    b"\x80\x04\x8a\xff" + b"\xff" * 255 + b".",
    b"\x80\x04]\x94" + b"](h\x00h\x00h\x00h\x00e\x94" * 30 + b".",
    b"I" + b"9" * 100_000 + b"\n.",
    b"\x80\x7f.", b"\x80\x04", b".", b"\x80\x04N.", b"\x80\x04}.", b"\x80\x04Q.", b"P1\n.",
    b"\x80\x04\x97.", b"\x82\x01.",
)  # fmt: skip


def _tensor(index: Metadata, random: Random) -> tuple[str, TensorStorageMetadata]:
    found = [(name, one) for name, one in index.state_dict_metadata.items() if isinstance(one, TensorStorageMetadata)]
    return random.choice(found) if found else ("", TensorStorageMetadata(None, torch.Size(()), []))  # type: ignore[arg-type]


def _size(index: Metadata, random: Random) -> None:
    _, tensor = _tensor(index, random)
    tensor.size = torch.Size([*tensor.size[1:], random.choice(SIZES)])


def _dtype(index: Metadata, random: Random) -> None:
    _, tensor = _tensor(index, random)
    tensor.properties = random.choice((replace(tensor.properties, dtype=random.choice(DTYPES)), None, "float32"))


def _chunk(index: Metadata, random: Random) -> None:
    _, tensor = _tensor(index, random)
    other = torch.Size([random.choice(SIZES) for _ in range(random.randrange(4))])
    tensor.chunks = [replace(chunk, **{random.choice(("offsets", "sizes")): other}) for chunk in tensor.chunks]


def _chunks(index: Metadata, random: Random) -> None:
    _, tensor = _tensor(index, random)
    tensor.chunks = random.choice((tensor.chunks * 2, [], tensor.chunks[:-1], None, [None], "x"))


def _kind(index: Metadata, random: Random) -> None:
    name, tensor = _tensor(index, random)
    others = (BytesStorageMetadata(), None, {}, "x", tensor.size, torch.float32)
    index.state_dict_metadata[name] = random.choice(others)  # type: ignore[assignment]


def _place(index: Metadata, random: Random) -> None:
    if not index.storage_data:
        return
    key = random.choice(list(index.storage_data))
    stored = index.storage_data[key]
    field = random.choice(("relative_path", "offset", "length", "transform_descriptors"))
    other: object = random.choice(NAMES) if field == "relative_path" else random.choice((*SIZES, None, "x", 0.5))
    index.storage_data[key] = replace(stored, **{field: ["zstd"] if field == "transform_descriptors" else other})


def _places(index: Metadata, random: Random) -> None:
    places = dict(index.storage_data or {})
    keys = list(places)
    if keys and random.random() < 0.5:
        one, two = random.choice(keys), random.choice(keys)
        places[one], places[two] = places[two], places[one]
    elif keys:
        del places[random.choice(keys)]
    index.storage_data = random.choice((places, places, places, None, {}, [], "x"))


def _names(index: Metadata, random: Random) -> None:
    name, _ = _tensor(index, random)
    tensor = index.state_dict_metadata.pop(name, None)
    if random.random() < 0.7 and tensor is not None:
        index.state_dict_metadata[random.choice((f"{name}\x1b[2J", "", "model", f"{name}.x", "random.0.cpu"))] = tensor


def _whole_field(index: Metadata, random: Random) -> None:
    field = random.choice(("state_dict_metadata", "storage_data", "planner_data", "storage_meta", "version"))
    setattr(index, field, random.choice((None, {}, [], "x", 7, {"a": None}, torch.Size((1,)))))


_CHANGES = (_size, _dtype, _chunk, _chunks, _kind, _place, _places, _names, _whole_field)


def unread(content: bytes) -> bytes:
    """A data file of torch whose pickle makes nothing, so that only what reads it can tell."""
    file = io.BytesIO()
    torch.save({"not": "a tensor"}, file)
    return file.getvalue() or content
