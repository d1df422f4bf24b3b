"""MpiGroup: torch's process group over a communicator of MPI, for what lies on the host.

Its ranks are torch's: the group of all is MPI's own, its processes in the order of the ranks they were given; the
others are made of their members alone. torch calls the names below (2.13, and what 2.11 and 2.12 call three of them).
"""

from __future__ import annotations

import atexit
import zlib
from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import cache
from typing import Protocol

import torch
from mpi4py import MPI
from torch import distributed as dist

from placer.errors import ExecutionError
from placer.runtime.distributed.mpi.buffers import numbers, octets, reduction
from placer.runtime.distributed.mpi.work import Collective, Limit, Line, Message

# torch's own name for MPI is taken, and means an MPI that it was built with.
NAME = "mpi4py"
# Of a communicator made by its members, so that two that are made at once are not mixed up: MPI promises tags so large.
LARGEST_TAG = 2**15 - 1

Tensors = list[torch.Tensor]


class _Options(Protocol):
    """What torch gives an extended backend."""

    store: object
    group_rank: int
    group_size: int
    timeout: timedelta
    group_id: str
    global_ranks_in_group: Sequence[int]


class _Rooted(Protocol):
    rootRank: int  # noqa: N815 (torch's name)


class _Reducing(Protocol):
    reduceOp: dist.ReduceOp  # noqa: N815 (torch's name)


class _ReducingTo(_Rooted, _Reducing, Protocol):
    """Both."""


class MpiGroup(dist.ProcessGroup):
    """A group of `communicator`; no wait is longer than `limit`."""

    def __init__(self, communicator: MPI.Intracomm, limit: timedelta) -> None:
        super().__init__(communicator.rank, communicator.size)  # type: ignore[call-arg]  # one of two ways to make it
        self._name = self._told = ""
        self._comm, self._limit = communicator, Limit(seconds=limit.total_seconds(), give_up=_end_all_at_exit)
        self._line = Line(self._limit)

    def getBackendName(self) -> str:  # noqa: N802 (torch's name)
        """What torch calls its kind."""
        return NAME

    def setGroupName(self, name: str) -> None:  # noqa: N802 (torch's name)
        """Remember what torch calls it."""
        self._name = name

    def getGroupName(self) -> str:  # noqa: N802 (torch's name)
        """What torch calls it."""
        return self._name

    def setGroupDesc(self, told: str) -> None:  # noqa: N802 (torch's name)
        """Remember what torch says of it."""
        self._told = told

    def getGroupDesc(self) -> str:  # noqa: N802 (torch's name)
        """What torch says of it."""
        return self._told

    def allreduce(self, tensors: Tensors, opts: _Reducing) -> Collective:
        """Each of `tensors` reduced over all ranks, in place."""

        def do() -> None:
            for tensor in tensors:
                _in_place(tensor, lambda whole: self._reduced(whole, opts))

        return self._line.begin(do, tensors)

    def reduce(self, tensors: Tensors, opts: _ReducingTo) -> Collective:
        """The same, on the root alone."""

        def to_root(whole: torch.Tensor) -> None:
            op, own = reduction(opts.reduceOp, whole.dtype), self._comm.rank == opts.rootRank
            sent, into = (MPI.IN_PLACE, numbers(whole)) if own else (numbers(whole), None)
            self._comm.Reduce(sent, into, op, opts.rootRank)

        return self._line.begin(lambda: _in_place(tensors[0], to_root), tensors)

    def broadcast(self, tensors: Tensors, opts: _Rooted) -> Collective:
        """Of the root's to all ranks."""

        def do() -> None:
            for tensor in tensors:
                _in_place(tensor, lambda whole: self._comm.Bcast(octets(whole), opts.rootRank))

        return self._line.begin(do, tensors)

    def allgather(self, outputs: list[Tensors], inputs: Tensors, opts: object = None) -> Collective:
        """Every rank's tensor, all of one size, to all."""
        (given,), (found,) = inputs, outputs

        def do() -> None:
            together = given.new_empty((len(found), given.numel()))
            self._comm.Allgather(octets(given.contiguous()), octets(together))
            for one, row in zip(found, together, strict=True):
                one.copy_(row.view(given.shape))

        return self._line.begin(do, outputs)

    def all_gather_single(self, output: torch.Tensor, given: torch.Tensor, opts: object = None) -> Collective:
        """The same into one tensor."""

        def do() -> None:
            _in_place(output, lambda whole: self._comm.Allgather(octets(given.contiguous()), octets(whole)))

        return self._line.begin(do, output)

    def gather(self, outputs: list[Tensors], inputs: Tensors, opts: _Rooted) -> Collective:
        """Every rank's tensor, all of one size, to the root."""
        (given,) = inputs

        def do() -> None:
            found = outputs[0] if outputs else []
            together = given.new_empty((len(found), given.numel()))
            self._comm.Gather(octets(given.contiguous()), octets(together) if found else None, opts.rootRank)
            for one, row in zip(found, together, strict=True):
                one.copy_(row.view(given.shape))

        return self._line.begin(do, outputs)

    def scatter(self, outputs: Tensors, inputs: list[Tensors], opts: _Rooted) -> Collective:
        """Of as many tensors of the root's as there are ranks one to each."""

        def do() -> None:
            given = octets(torch.stack(inputs[0])) if inputs else None
            _in_place(outputs[0], lambda whole: self._comm.Scatter(given, octets(whole), opts.rootRank))

        return self._line.begin(do, outputs)

    def reduce_scatter(self, outputs: Tensors, inputs: list[Tensors], opts: _Reducing) -> Collective:
        """Each rank its part of what is reduced over all, parts of one size."""
        return self.reduce_scatter_single(outputs[0], torch.cat([one.reshape(-1) for one in inputs[0]]), opts)

    def reduce_scatter_single(self, output: torch.Tensor, given: torch.Tensor, opts: _Reducing) -> Collective:
        """The same of one tensor."""
        op = reduction(opts.reduceOp, given.dtype)

        def do() -> None:
            _in_place(
                output,
                lambda whole: self._comm.Reduce_scatter_block(numbers(given.contiguous()), numbers(whole), op),
            )

        return self._line.begin(do, output)

    def all_to_all_single(
        self, output: torch.Tensor, given: torch.Tensor, received: list[int], sent: list[int], opts: object = None
    ) -> Collective:
        """Rows for each rank, and from each; equally many where nothing is said."""
        counts = [_bytes(rows, one, self._comm.size) for one, rows in ((given, sent), (output, received))]

        def do() -> None:
            _in_place(
                output,
                lambda whole: self._comm.Alltoallv((octets(given.contiguous()), counts[0]), (octets(whole), counts[1])),
            )

        return self._line.begin(do, output)

    def barrier(self, opts: object = None) -> Collective:
        """Until all ranks are there."""
        return self._line.begin(self._comm.Barrier, [])

    def send(self, tensors: Tensors, rank: int, tag: int) -> Message:
        """To `rank`."""
        whole = tensors[0].contiguous()
        return Message(self._comm.Isend(octets(whole), rank, tag), whole, self._limit, lambda: None)

    def recv(self, tensors: Tensors, rank: int, tag: int) -> Message:
        """From `rank`."""
        (tensor,) = tensors
        whole = tensor if tensor.is_contiguous() else tensor.new_empty(tensor.shape)
        request = self._comm.Irecv(octets(whole), rank, tag)
        return Message(request, whole, self._limit, lambda: None if whole is tensor else _copied(tensor, whole))

    def made_of(self, ranks: Sequence[int], name: str, limit: timedelta) -> MpiGroup:
        """A group of some of its ranks, all of which call this."""
        tag = zlib.crc32(name.encode()) % LARGEST_TAG
        return MpiGroup(self._comm.Create_group(self._comm.group.Incl(list(ranks)), tag), limit)

    def shutdown(self) -> None:
        """Begin nothing more."""
        self._line.end()

    # What torch 2.11 and 2.12 call them.
    _allgather_base = all_gather_single  # type: ignore[assignment]  # as above
    _reduce_scatter_base = reduce_scatter_single  # type: ignore[assignment]
    alltoall_base = all_to_all_single  # type: ignore[assignment]

    def _reduced(self, whole: torch.Tensor, opts: _Reducing) -> None:
        self._comm.Allreduce(MPI.IN_PLACE, numbers(whole), reduction(opts.reduceOp, whole.dtype))


def register() -> None:
    """Let torch make groups by this name. Raises ExecutionError where MPI cannot be called by several threads."""
    if MPI.Query_thread() != MPI.THREAD_MULTIPLE:
        raise ExecutionError(
            f"this MPI ({MPI.Get_library_version().splitlines()[0]}) cannot be called by several threads "
            "(MPI_THREAD_MULTIPLE), which collectives beside a backward need; take one that can"
        )
    if NAME.upper() not in dist.Backend._plugins:
        dist.Backend.register_backend(NAME, _made, extended_api=True, devices=["cpu"])


# The group of all ranks, where that is MPI's: in the order of torch's ranks.
_WORLD: list[MpiGroup] = []


def _made(options: _Options, _: object) -> MpiGroup:
    """The group of all ranks, or one of some of those; where the group of all is of another backend, its ranks are
    taken for MPI's."""
    ranks = tuple(options.global_ranks_in_group)
    if ranks:
        world = _WORLD[0] if _WORLD else MpiGroup(MPI.COMM_WORLD, options.timeout)
        return world.made_of(ranks, options.group_id, options.timeout)
    if MPI.COMM_WORLD.size != options.group_size:
        raise ExecutionError(
            f"mpirun started {MPI.COMM_WORLD.size} processes, {options.group_size} are needed; "
            f"give mpirun -n {options.group_size}"
        )
    _WORLD[:] = [MpiGroup(MPI.COMM_WORLD.Split(0, options.group_rank), options.timeout)]
    return _WORLD[0]


@cache
def _end_all_at_exit() -> None:
    """Have this process, as it exits, end the run: MPI itself would wait for what never came."""
    atexit.register(MPI.COMM_WORLD.Abort, 1)


def _in_place(tensor: torch.Tensor, do: Callable[[torch.Tensor], object]) -> None:
    """Have something done to the memory of a tensor, or of a copy without gaps that then is copied back."""
    whole = tensor.contiguous()
    do(whole)
    if whole is not tensor:
        _copied(tensor, whole)


def _copied(tensor: torch.Tensor, whole: torch.Tensor) -> None:
    with torch.no_grad():
        tensor.copy_(whole)


def _bytes(rows: list[int], tensor: torch.Tensor, ranks: int) -> list[int]:
    """Bytes of each rank's rows."""
    size = tensor.numel() * tensor.element_size()
    if not rows:
        return [size // ranks] * ranks
    each = size // tensor.shape[0] if tensor.shape[0] else 0
    return [count * each for count in rows]
