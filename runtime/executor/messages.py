"""Point-to-point messages of a step: sends are posted and kept until a message of the peer proves that they came, or
the step ends; receives are posted when the program comes to them and waited for by the first computation that reads
them.

gloo matches by tag, so that the order of posting does not matter. NCCL ignores tags and matches by order, which the
program
keeps equal on both sides; the values of one message are posted as one batch there. The NCCL path has not been tried
here. Between an accelerator and a CPU values go from host to host, by gloo, and are copied to and from the accelerator.

Which of its messages a rank knows to have arrived, so that it need not keep their tensors until the step ends.

A rank waits for what an action reads before it computes it, and sends what the action made after that. So a message
that an action of the peer made proves that all has arrived which the peer read for that action or for one before it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
from torch import distributed as dist

from placer.plans.plan import Plan
from placer.plans.schedule import actions
from placer.program.instructions import Message
from placer.runtime.distributed.mixed_allreduce import on_host
from placer.runtime.observer import Observer
from placer.runtime.stages.shapes import TensorMeta

# Values of one message get neighbouring tags.
_VALUES_PER_MESSAGE = 1024


@dataclass(slots=True)
class Receiving:
    """A posted receive: `wait()` gives the tensors, one per value of `message`, on `device`."""

    message: Message
    tensors: tuple[torch.Tensor, ...]
    works: list[dist.Work]
    observer: Observer
    mailbox: Mailbox
    device: torch.device

    def wait(self) -> tuple[torch.Tensor, ...]:
        """The values, when they are here."""
        if self.works:
            with self.observer.during("communication"):
                for work in self.works:
                    work.wait()
                self.mailbox.settle(self.message)
                self.tensors = tuple(tensor.to(self.device) for tensor in self.tensors)
            self.works = []
            self.observer.message(self.message, _sizes(self.tensors))
        return self.tensors


@dataclass(frozen=True, slots=True)
class _Sent:
    """A posted send: when the peer reads it, and what it holds until then."""

    read_at: int
    works: list[dist.Work]
    tensors: list[torch.Tensor]


class Mailbox:
    """Sends and receives of this rank. `device` is where tensors live; `by_host` are the peers whose messages go
    through this rank's host."""

    def __init__(
        self, device: torch.device, observer: Observer, deliveries: Deliveries, by_host: frozenset[int] = frozenset()
    ) -> None:
        self._device, self.observer, self._deliveries, self._by_host = device, observer, deliveries, by_host
        self._pending: dict[int, list[_Sent]] = {}

    def send(self, message: Message, tensors: list[torch.Tensor]) -> None:
        """Post the values of `message`; those without elements are not sent."""
        whole = [tensor.detach().contiguous() for tensor in tensors]
        if message.peer in self._by_host:
            whole = [on_host(tensor) for tensor in whole]
        works = self._post(dist.isend, message, whole)
        if works:
            sent = _Sent(self._deliveries.read_at(message), works, whole)
            self._pending.setdefault(message.peer, []).append(sent)
            self.observer.message(message, _sizes(tuple(whole)))

    def receive(self, message: Message, shapes: list[TensorMeta]) -> Receiving:
        """Post the receives of `message`, whose values have `shapes`."""
        device = torch.device("cpu") if message.peer in self._by_host else self._device
        tensors = [torch.empty(s.shape, dtype=s.dtype, device=device) for s in shapes]
        works = self._post(dist.irecv, message, tensors)
        return Receiving(message, tuple(tensors), works, self.observer, self, self._device)

    def settle(self, received: Message) -> None:
        """Let go of what has arrived, as `received` proves."""
        made_at, waiting = self._deliveries.made_at(received), self._pending.pop(received.peer, [])
        _wait_for(sent for sent in waiting if sent.read_at <= made_at)
        self._pending[received.peer] = [sent for sent in waiting if sent.read_at > made_at]

    def finish(self) -> None:
        """Wait for everything sent."""
        with self.observer.during("communication"):
            _wait_for(sent for waiting in self._pending.values() for sent in waiting)
        self._pending = {}

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


def _wait_for(sent: Iterable[_Sent]) -> None:
    """Once each: gloo waits for another message if asked again."""
    for one in sent:
        for work in one.works:
            work.wait()


def _sizes(tensors: tuple[torch.Tensor, ...]) -> tuple[int, ...]:
    return tuple(tensor.numel() * tensor.element_size() for tensor in tensors)


_Read = tuple[int, str, int]  # stage, F or B, microbatch


class Deliveries:
    """The order in which each rank of a plan reads and makes messages."""

    def __init__(self, plan: Plan) -> None:
        lines = actions(plan.schedule, plan.positions, len(plan.stages), len(plan.microbatches))
        # The part of a backward that makes gradients of inputs (I) reads and makes what the whole one does.
        self._order: dict[_Read, int] = {
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


_LETTERS = {"activation": "F", "gradient": "B"}
