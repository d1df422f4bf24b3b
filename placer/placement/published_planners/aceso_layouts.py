"""How the ops of Aceso's models lie over the devices of their stage, and what it takes where neighbours disagree.

A layout is (copies, cuts of the dims); the dims are sequence or batch, batch or heads, hidden. Every op takes and gives
one layout for its tensor degree, data degree and algorithm (0: the usual way, 1: the other matrix dim).
Source: section 4.2 and the table of op layouts of the published search.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

OpDegrees = tuple[str, int, int, int]

# Ops that cut heads or hidden over the tensor axis on both sides, hidden first or heads.
_HEADS = ("enc-attention-softmax", "enc-attention-dropout")
_COLUMN_FIRST, _ROW_FIRST = ("enc-attention-qkv", "enc-MLP-GEMM-1"), ("enc-attention-dense", "enc-MLP-GEMM-2")


@dataclass(frozen=True, slots=True, kw_only=True)
class AcesoLayout:
    """How a tensor lies: `copies` of it, and into how many parts each of three dims is cut."""

    copies: int
    cuts: tuple[int, int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Resharding:
    """The collectives between two ops, forward and backward; None where nothing is sent."""

    forward: str
    backward: str
    devices: int


@cache
def resharding(before: OpDegrees, after: OpDegrees) -> Resharding | None:
    """What happens between two ops, each (name, tensor degree, data degree, algorithm); None where they agree."""
    given, wanted = output_layout(before), input_layout(after)
    if given is None or wanted is None or given == wanted:
        return None
    if given.copies > wanted.copies:
        return Resharding(forward="split", backward="all_gather", devices=given.copies // wanted.copies)
    source = next((i for i in range(3) if given.cuts[i] > wanted.cuts[i]), 0)
    devices = given.cuts[source] // wanted.cuts[source]
    if given.copies < wanted.copies:
        return Resharding(forward="all_gather", backward="split", devices=devices)
    return Resharding(forward="all_to_all", backward="all_to_all", devices=devices)


def input_layout(shape: OpDegrees) -> AcesoLayout | None:
    """The layout that an op takes; None where it takes what comes."""
    op, tensor, data, algo = shape
    if op == "encoder-embedding":
        return None
    if op in _COLUMN_FIRST + _ROW_FIRST:
        return _whole(tensor, data) if (op in _COLUMN_FIRST) == (algo == 0) else _hidden(tensor, data)
    if op in ("enc-attention-score", "enc-MLP-gelu"):
        return _hidden(tensor, data)
    return _inner(op, tensor, data)


def output_layout(shape: OpDegrees) -> AcesoLayout | None:
    """The layout that an op gives; None where nobody takes it."""
    op, tensor, data, algo = shape
    if op == "gpt-post-process":
        return None
    if op in _COLUMN_FIRST + _ROW_FIRST:
        return _hidden(tensor, data) if (op in _COLUMN_FIRST) == (algo == 0) else _whole(tensor, data)
    if op in ("enc-attention-context", "enc-MLP-gelu"):
        return _hidden(tensor, data)
    if op == "enc-attention-score":
        return AcesoLayout(copies=1, cuts=(data, tensor, 1))
    if op == "final-layernorm":
        return AcesoLayout(copies=tensor, cuts=(data, 1, 1))
    return _inner(op, tensor, data)


def _inner(op: str, tensor: int, data: int) -> AcesoLayout:
    """The layout of ops that give what they take."""
    if op in _HEADS or op == "enc-attention-context":
        return AcesoLayout(copies=1, cuts=(data, tensor, 1))
    if op.startswith("enc") or op == "final-layernorm":
        return _whole(tensor, data)
    return AcesoLayout(copies=tensor, cuts=(data, 1, 1))


def _whole(tensor: int, data: int) -> AcesoLayout:
    """Every device of a tensor group holds it all."""
    return AcesoLayout(copies=tensor, cuts=(1, data, 1))


def _hidden(tensor: int, data: int) -> AcesoLayout:
    """Cut on hidden."""
    return AcesoLayout(copies=1, cuts=(1, data, tensor))
