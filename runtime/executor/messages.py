"""Point-to-point messages of a step: which part of a value they carry, and when they are posted and waited for.

Sends are posted and kept until a message of the peer proves that they came, or the step ends; receives are posted when
the program comes to them and waited for by the first computation that reads them. A rank waits for what an action
reads before it computes it, and sends what the action made after that. So a message that an action of the peer made
proves that all has arrived which the peer read for that action or for one before it.

gloo matches by tag, so that the order of posting does not matter. NCCL ignores tags and matches by order, which the
program keeps equal on both sides; the values of one message are posted as one batch there. The NCCL path has not been
tried here. Between an accelerator and a CPU values go from host to host, by gloo, and are copied to and from the
accelerator.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cache

import torch
from torch import distributed as dist
from torch import fx

from placer.costs.precision import Numerics
from placer.graph import Tensor
from placer.plans.order import plan_actions
from placer.plans.plan import Plan
from placer.plans.transfers import position_of
from placer.program.instructions import Message
from placer.rules.layouts import piece
from placer.rules.two_axis_layouts import held_shape, pieces
from placer.runtime.distributed.tensors import on_host
from placer.runtime.observer import Observer
from placer.runtime.spmd import Axis
from placer.runtime.stages.block_code import CutModel
from placer.runtime.stages.captured_model import input_dtypes
from placer.runtime.stages.shapes import TensorMeta, shapes_of
from placer.spmd.cross_mesh import Range, Ranges, row_dim
from placer.spmd.parameter_layouts import value_state

# Values of one message get neighbouring tags.
_VALUES_PER_MESSAGE = 1024
_LETTERS = {"activation": "F", "gradient": "B"}

Rows = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Receiving:
    """A posted receive: one tensor per value of `message`."""

    message: Message
    tensors: tuple[torch.Tensor, ...]
    works: list[dist.Work]


@dataclass(frozen=True, slots=True)
class _Sending:
    """A posted send: when the peer reads it, and what it holds until then."""

    read_at: int
    works: list[dist.Work]
    tensors: list[torch.Tensor]


class Mailbox:
    """Sends and receives of `rank`, whose tensors live on `device`."""

    def __init__(self, plan: Plan, rank: int, device: torch.device, observer: Observer) -> None:
        self._device, self._observer = device, observer
        self._by_host, self._deliveries = _by_host(plan, rank), Deliveries(plan)
        self._pending: dict[int, list[_Sending]] = {}

    def send(self, message: Message, tensors: list[torch.Tensor]) -> None:
        """Post the values of `message`; those without elements are not sent."""
        whole = [tensor.detach().contiguous() for tensor in tensors]
        if message.peer in self._by_host:
            whole = [on_host(tensor) for tensor in whole]
        works = self._post(dist.isend, message, whole)
        if works:
            sending = _Sending(self._deliveries.read_at(message), works, whole)
            self._pending.setdefault(message.peer, []).append(sending)
            self._observer.message(message, _sizes(whole))

    def receive(self, message: Message, shapes: list[TensorMeta]) -> Receiving:
        """Post the receives of `message`, whose values have `shapes`."""
        device = torch.device("cpu") if message.peer in self._by_host else self._device
        tensors = [torch.empty(s.shape, dtype=s.dtype, device=device) for s in shapes]
        return Receiving(message, tuple(tensors), self._post(dist.irecv, message, tensors))

    def wait(self, posted: Receiving) -> tuple[torch.Tensor, ...]:
        """The values on the device, when they are here."""
        if not posted.works:
            return posted.tensors
        with self._observer.during("communication"):
            for work in posted.works:
                work.wait()
            self._let_go(posted.message)
            tensors = tuple(tensor.to(self._device) for tensor in posted.tensors)
        self._observer.message(posted.message, _sizes(tensors))
        return tensors

    def finish(self) -> None:
        """Wait for everything sent."""
        with self._observer.during("communication"):
            _wait_for(sending for waiting in self._pending.values() for sending in waiting)
        self._pending = {}

    def _let_go(self, received: Message) -> None:
        """Of what has arrived, as `received` proves."""
        made_at, waiting = self._deliveries.made_at(received), self._pending.pop(received.peer, [])
        _wait_for(sending for sending in waiting if sending.read_at <= made_at)
        self._pending[received.peer] = [sending for sending in waiting if sending.read_at > made_at]

    def _post(self, op: Callable[..., object], message: Message, tensors: list[torch.Tensor]) -> list[dist.Work]:
        first = message.tag * _VALUES_PER_MESSAGE
        operations = [
            dist.P2POp(op, tensor, message.peer, tag=first + index)
            for index, tensor in enumerate(tensors)
            if tensor.numel()
        ]
        if not operations:
            return []
        if self._device.type == "cuda" and message.peer not in self._by_host:
            return dist.batch_isend_irecv(operations)
        works = (entry.op(entry.tensor, entry.peer, tag=entry.tag) for entry in operations)
        return [work for work in works if work is not None]


def _wait_for(sent: Iterable[_Sending]) -> None:
    """Once each: gloo waits for another message if asked again."""
    for sending in sent:
        for work in sending.works:
            work.wait()


def _sizes(tensors: Iterable[torch.Tensor]) -> tuple[int, ...]:
    return tuple(tensor.numel() * tensor.element_size() for tensor in tensors)


class Deliveries:
    """The order in which each rank of a plan reads and makes messages."""

    def __init__(self, plan: Plan) -> None:
        lines = plan_actions(plan)
        # The part of a backward that makes gradients of inputs (I) reads and makes what the whole one does.
        self._order: dict[tuple[int, str, int], int] = {
            (action.stage, "F" if action.kind == "F" else "B", action.microbatch): index
            for line in lines
            for index, action in enumerate(line)
            if action.kind != "W"
        }

    def read_at(self, sent: Message) -> int:
        """When the peer reads a message that goes to it, counted in its actions."""
        return self._order[sent.target_stage, _LETTERS[sent.kind], sent.microbatch]

    def made_at(self, received: Message) -> int:
        """When the peer made a message that has come from it, counted in its actions."""
        return self._order[received.source_stage, _LETTERS[received.kind], received.microbatch]


class MessageParts:
    """What messages carry of what the devices numbered `inner` in their replicas hold of a value.

    A message names rows of the microbatch and ranges of whole values; a rank holds some rows, and of a value that is
    cut its piece. Dim by dim the part begins as many entries behind the rank's first.
    """

    def __init__(self, plan: Plan, inner: int) -> None:
        self._plan, self._inner = plan, inner

    def of(self, message: Message, number: int, rows: Rows) -> Ranges:
        """The part of value `number` within what this rank, which has `rows`, holds of it; () is all of that."""
        if message.rows == rows and not message.cuts:
            return ()
        cuts = message.cuts[number] if message.cuts else ()
        tensor = self._plan.graph.value(message.values[number])
        stage = message.source_stage if message.direction == "send" else message.target_stage
        return (*_row_range(tensor, message.rows, rows), *self._own(message.values[number], tensor, stage, cuts))

    def _own(self, value: str, tensor: Tensor, stage: int, cuts: Ranges) -> Iterable[Range]:
        if not cuts:
            return
        lay = value_state(self._plan, value, stage).value
        for part in cuts:
            size = tensor.shape[part.dim].fixed
            first, last = 0, size
            for one, count, at, _ in pieces(lay, self._plan.stages[stage].degree, self._inner):
                if one.dim == part.dim:
                    first, last = piece(size, count, at)
            if (part.start, part.stop) != (first, last):
                yield Range(part.dim, part.start - first, part.stop - first)


def narrowed(tensor: torch.Tensor, part: Ranges) -> torch.Tensor:
    """A view of a part of `tensor`."""
    for one in part:
        tensor = tensor.narrow(one.dim, one.start, one.stop - one.start)
    return tensor


def narrowed_shape(shape: tuple[int, ...], part: Ranges) -> tuple[int, ...]:
    """The shape of a part of a tensor of `shape`."""
    sizes = list(shape)
    for one in part:
        sizes[one.dim] = one.stop - one.start
    return tuple(sizes)


def _row_range(tensor: Tensor, carried: Rows, held: Rows) -> Iterable[Range]:
    dim = row_dim(tensor) if tensor.batched and carried != held else None
    if dim is not None:
        each = tensor.shape[dim].per_row
        yield Range(dim, (carried[0] - held[0]) * each, (carried[1] - held[0]) * each)


def makers(plan: Plan, cut: CutModel) -> dict[str, int]:
    """The stage that makes each block output."""
    return {
        cut.name(node): stage
        for stage, entry in enumerate(plan.stages)
        for block in range(entry.first, entry.last)
        for node in cut.outputs_of.get(block, ())
    }


def value_shapes(plan: Plan, cut: CutModel, axis: Axis) -> Callable[[int, int], Mapping[str, TensorMeta]]:
    """A function from a number of rows, and a stage of this rank, to the shapes that block outputs have in it.

    It gives none where nothing is sent. Under autocast values are sent in the types that the plan's program says,
    whatever the lists of ops of the device that makes them: `Interpreter` casts those that are of others.
    """
    values = {node: cut.name(node) for nodes in cut.outputs_of.values() for node in nodes}

    def as_told(found: Mapping[fx.Node, TensorMeta]) -> Mapping[fx.Node, TensorMeta]:
        types = Numerics.of(plan.graph, plan.settings, plan.cluster.kernels).crossing
        typed = {node: types[name] for node, name in values.items() if name in types}
        return {**found, **{node: replace(found[node], dtype=getattr(torch, name)) for node, name in typed.items()}}

    @cache
    def whole(rows: int) -> Mapping[fx.Node, TensorMeta]:
        if plan.settings.precision == "bfloat16-autocast":
            return as_told(shapes_of(cut.module, plan.graph, input_dtypes(plan), rows=rows, autocast=True))
        return {node: cut.shape_at(node, rows) for node in values}

    @cache
    def at(rows: int, stage: int) -> dict[str, TensorMeta]:
        if position_of(plan).count(0) == len(plan.stages):
            return {}
        found = whole(rows)
        return {name: _piece(plan, axis, name, found[node], stage) for node, name in values.items()}

    return at


def _piece(plan: Plan, axis: Axis, name: str, shape: TensorMeta, stage: int) -> TensorMeta:
    """The shape of what this rank has of a value that crosses blocks, in a stage that makes or reads it."""
    lay = value_state(plan, name, stage).value
    return replace(shape, shape=held_shape(shape.shape, lay, axis.degree, axis.rank))


def _by_host(plan: Plan, rank: int) -> frozenset[int]:
    """The ranks with which `rank` speaks through its host: of a GPU those on CPUs."""
    if len(plan.cluster.backends) == 1 or plan.cluster.devices[plan.ranks[rank]].backend == "cpu":
        return frozenset()
    return frozenset(r for r, device in enumerate(plan.ranks) if plan.cluster.devices[device].backend == "cpu")
