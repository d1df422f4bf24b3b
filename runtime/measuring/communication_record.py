"""What one rank really communicated in a step, and whether that is what its program says.

Every operation of torch.distributed passes torch's dispatcher, also those that DDP's C++ reducer and FSDP2 issue; a
`Recorder` stands there and notes kind, bytes and ranks in order of issue. It slows every op, so one step is enough.

    with Recorder() as recorder:
        executor.step(batch)
    differences = compare(program, recorder.records)
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from typing import Literal, TypeGuard, cast

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import _resolve_process_group
from torch._ops import OpOverload

from placer.program.instructions import Collective, Message, Program
from placer.program.mixed_allreduce import route_steps
from placer.program.reductions import ServerRoute, served_messages
from placer.runtime.observer import OpWatch
from placer.tracer.measure.call_cache import tensors_in

# So many ranks are named one by one.
MANY = 16

Kind = Literal[
    "send", "receive", "all_reduce", "all_gather", "reduce_scatter", "reduce", "broadcast", "all_to_all", "barrier"
]

# Schemas in torch/csrc/distributed/c10d/Ops.cpp and Functional.cpp: the op's name -> what it is. `full` says which
# tensors hold the whole buffer: the first argument (results come first) or the second.
_OPS: dict[str, tuple[Kind, int]] = {
    "c10d::send": ("send", 0),
    "c10d::recv_": ("receive", 0),
    "c10d::recv_any_source_": ("receive", 0),
    "c10d::allreduce_": ("all_reduce", 0),
    "c10d::allreduce_coalesced_": ("all_reduce", 0),
    "c10d::_allgather_base_": ("all_gather", 0),
    "c10d::allgather_": ("all_gather", 0),
    "c10d::allgather_coalesced_": ("all_gather", 0),
    "c10d::allgather_into_tensor_coalesced_": ("all_gather", 0),
    "c10d::_reduce_scatter_base_": ("reduce_scatter", 1),
    "c10d::reduce_scatter_": ("reduce_scatter", 1),
    "c10d::reduce_scatter_tensor_coalesced_": ("reduce_scatter", 1),
    "c10d::reduce_": ("reduce", 0),
    "c10d::broadcast_": ("broadcast", 0),
    "c10d::alltoall_": ("all_to_all", 0),
    "c10d::alltoall_base_": ("all_to_all", 0),
    "c10d::barrier": ("barrier", 0),
    "_c10d_functional::all_reduce": ("all_reduce", 0),
    "_c10d_functional::all_reduce_": ("all_reduce", 0),
}

# What a step of a sum over unlike ranks communicates; those that copy do not.
_STEPS: dict[str, Kind] = {
    "send": "send", "receive": "receive", "add": "receive", "reduce": "reduce", "broadcast": "broadcast",
    "all_reduce": "all_reduce",
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Communication:
    """One operation of one rank. `ranks`: a message's peer, or all of a collective; `bytes`: of the full buffer.

    dtype, shape: of the full buffer, "" and None where nothing is said of them. sent, received: elements for and from
    each rank of an all_to_all whose pieces are given.
    """

    kind: Kind
    ranks: tuple[int, ...]
    bytes: int
    dtype: str = ""
    shape: tuple[int, ...] | None = None
    sent: tuple[int, ...] = ()
    received: tuple[int, ...] = ()

    def __str__(self) -> str:
        towards = {"send": "to rank", "receive": "from rank"}.get(self.kind, "over ranks")
        shape = "" if self.shape is None else f"{list(self.shape)} "
        what = f" ({shape}{self.dtype})" if self.dtype else ""
        return f"{self.kind} of {self.bytes} bytes{what} {towards} {listed(self.ranks)}"

    def meets(self, done: Communication) -> bool:
        """Whether `done` is what this says: kind, ranks and bytes, type and shape where this says them."""
        return (
            (self.kind, self.ranks, self.bytes) == (done.kind, done.ranks, done.bytes)
            and self.dtype in ("", done.dtype)
            and self.shape in (None, done.shape)
        )


def listed(ranks: Sequence[int]) -> str:
    """Ranks in words; of many the first, the last and how many."""
    if len(ranks) <= MANY:
        return ", ".join(map(str, ranks))
    return f"{ranks[0]}, {ranks[1]}, ..., {ranks[-1]} ({len(ranks)} ranks)"


class Recorder(OpWatch):  # type: ignore[no-untyped-call]  # torch does not type it
    """Notes every communication that the body of `with` issues."""

    def __init__(self) -> None:
        super().__init__()
        self._records: list[Communication] = []

    @property
    def records(self) -> tuple[Communication, ...]:
        """In order of issue."""
        return tuple(self._records)

    def op(self, func: OpOverload, args: tuple[object, ...], kwargs: dict[str, object]) -> object:
        """Note it where it communicates, then do it."""
        found = _OPS.get(func._schema.name)
        if found is not None:
            self._records.append(_communication(*found, args))
        return cast(Callable[..., object], func)(*args, **kwargs)


def compare(program: Program, records: Sequence[Communication]) -> tuple[str, ...]:
    """How `records` differ from what `program` prescribes and expects, in order; empty where they do not."""
    pairs = zip_longest(communications(program), records)
    return tuple(
        f"rank {program.rank}, communication {index}: the program says {wanted or 'nothing'}, the rank did "
        f"{done or 'nothing'}"
        for index, (wanted, done) in enumerate(pairs)
        if wanted is None or done is None or not wanted.meets(done)
    )


def compared(
    program: Program, records: Sequence[Communication], replica: tuple[int, ...]
) -> tuple[tuple[str, ...], tuple[Communication, ...]]:
    """How `records` differ from `program`, and those of them that it leaves to blocks: among the ranks of `replica`."""
    own = frozenset(replica)
    wanted = deque(communications(program))
    outside: list[Communication] = []
    inside: list[Communication] = []
    for done in records:
        expected = bool(wanted) and wanted[0].meets(done)
        if not expected and own.issuperset(done.ranks) and done.kind not in ("send", "receive"):
            inside.append(done)
            continue
        outside.append(done)
        if wanted:
            wanted.popleft()
    return compare(program, outside), tuple(inside)


def communications(program: Program) -> Iterator[Communication]:
    """What a program prescribes and expects, one entry per value of a message."""
    for entry in program.instructions:
        if isinstance(entry, Message):
            told = zip_longest(entry.sizes, entry.shapes, entry.dtypes)
            for size, shape, dtype in told:
                if size:  # of no rows nothing is sent
                    yield Communication(
                        kind=entry.direction, ranks=(entry.peer,), bytes=size, dtype=dtype or "", shape=shape
                    )
        elif isinstance(entry, Collective):
            yield from of_collective(entry, program.rank)


def joined_sums(records: Sequence[Communication], sums: Iterable[Collective], rank: int) -> tuple[Communication, ...]:
    """`records` with all that `rank` did for each of `sums`, which it did among them, as one."""
    left = list(records)
    for entry in sums:
        for wanted in of_collective(entry, rank):
            left.remove(next(done for done in left if wanted.meets(done)))
        left += of_collective(replace(entry, way=None), rank)
    return tuple(left)


def of_collective(entry: Collective, rank: int) -> Iterator[Communication]:
    """What `rank` communicates for it: one operation, the steps of a sum over unlike ranks or hosts, or pieces."""
    one = Communication(kind=entry.kind, ranks=entry.ranks, bytes=entry.bytes, dtype=entry.dtype)
    if entry.way is None:
        yield one
    elif isinstance(entry.way, ServerRoute):
        item = getattr(torch, entry.dtype).itemsize
        for piece in served_messages(entry.way, rank, entry.bytes, item):
            yield replace(one, kind=piece.do, ranks=(piece.rank,), bytes=piece.end - piece.start)
    else:
        for step in route_steps(entry.way, rank):
            if step.do in _STEPS:
                yield replace(one, kind=_STEPS[step.do], ranks=step.ranks)


def _communication(kind: Kind, full: int, args: tuple[object, ...]) -> Communication:
    group = _group(args)
    members = tuple(dist.get_process_group_ranks(group))
    if kind in ("send", "receive"):
        peer = next(value for value in args if isinstance(value, int))
        members = (members[peer],)
    buffers = tuple(tensors_in(args[full]))
    splits = [tuple(map(int, one)) for one in args if _numbers(one)] if kind == "all_to_all" else []
    received, sent = splits if len(splits) == 2 else ((), ())
    return Communication(
        kind=kind,
        ranks=members,
        bytes=sum(t.numel() * t.element_size() for t in buffers),
        dtype="/".join(dict.fromkeys(str(t.dtype).removeprefix("torch.") for t in buffers)),
        shape=tuple(map(int, buffers[0].shape)) if len(buffers) == 1 else None,
        sent=sent,
        received=received,
    )


def _numbers(value: object) -> TypeGuard[Sequence[int]]:
    return isinstance(value, list | tuple) and bool(value) and all(isinstance(one, int) for one in value)


def _group(args: tuple[object, ...]) -> dist.ProcessGroup:
    """The process group among the arguments: a script object, or its name in the functional ops."""
    for value in args:
        if isinstance(value, torch.ScriptObject) and value._type().qualified_name().endswith("c10d.ProcessGroup"):
            return _resolve_process_group(dist.ProcessGroup.unbox(value).group_name)
    name = next(value for value in reversed(args) if isinstance(value, str))
    return _resolve_process_group(name)  # type: ignore[arg-type]  # torch's GroupName is a str
