"""The interpreter: one rank's Program, instruction by instruction.

    Compute F      forward of a stage on a microbatch, from inputs, messages and values of earlier stages on this rank
    Compute B      its whole backward; I the part for its inputs, W the part for its weights
    Message        values to the stages that read them, their gradients back
    Collective     those placer issues; DDP's and FSDP2's are issued by these engines during Compute
    OptimizerStep  clip and update

A value that several stages read gets its gradient from each of them; they are summed before the backward of its maker.
A rank without rows of a microbatch skips it, unless DDP or FSDP2 wait for any of its stages: then it computes one row
that counts nothing (a ghost). It sends and gets nothing either way.

Between stages whose replicas differ a value comes in parts, from all that have rows of it, and goes in parts.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from placer.plans.schedule import Action
from placer.program.instructions import Collective, Compute, Message, Program
from placer.runtime.data_parallel.replicas import Replica
from placer.runtime.executor.message_slices import MessageParts, narrowed, narrowed_shape
from placer.runtime.executor.messages import Deliveries, Mailbox, Receiving
from placer.runtime.observer import Observer
from placer.runtime.stages.microbatch import Microbatch
from placer.runtime.stages.shapes import TensorMeta
from placer.runtime.stages.split_backward import Deferred, backward_inputs
from placer.spmd.cross_mesh import Ranges

Values = dict[str, torch.Tensor]
_Where = tuple[int, int]  # stage, microbatch


@dataclass(frozen=True, slots=True, kw_only=True)
class Wiring:
    """What the interpreter needs to know of the plan.

    home: the stage that makes each value. shapes: of all values, for a number of rows, in a stage of this rank. parts:
    which part of what this rank holds a message carries. loss: the loss's reference.
    counts_loss: whether this rank's loss enters the sum: all devices of a replica have the same.
    by_host: the ranks whose messages go through this rank's host, of an accelerator those on CPUs.
    """

    program: Program
    replicas: Mapping[int, Replica]
    home: Mapping[str, int]
    shapes: Callable[[int, int], Mapping[str, TensorMeta]]
    parts: MessageParts
    deliveries: Deliveries
    loss: str
    autocast: bool
    device: torch.device
    counts_loss: bool = True
    eager_attention: bool = False
    by_host: frozenset[int] = frozenset()


@dataclass(slots=True)
class _Pass:
    """What a forward leaves for its backward."""

    leaves: Values
    outputs: Values
    ghost: bool
    deferred: Deferred | None = None


@dataclass(slots=True)
class _Step:
    """The state of one step."""

    feeds: tuple[Microbatch, ...]
    training: bool
    passes: dict[_Where, _Pass] = field(default_factory=dict)
    receiving: dict[tuple[str, int, int], list[Receiving]] = field(default_factory=dict)
    values: dict[tuple[int, int, str], torch.Tensor] = field(default_factory=dict)
    gradients: dict[tuple[int, int, str], torch.Tensor] = field(default_factory=dict)
    returned: dict[tuple[int, int, str], torch.Tensor] = field(default_factory=dict)
    loss: torch.Tensor = field(default_factory=lambda: torch.zeros((), dtype=torch.float64))


class Interpreter:
    """Runs the steps of one rank. `reduce` does a collective of placer's own, `sum_over` one over a given tensor;
    `update`
    ends the step."""

    def __init__(
        self,
        wiring: Wiring,
        *,
        reduce: Callable[[Collective], None],
        sum_over: Callable[[Collective, torch.Tensor], None],
        update: Callable[[], None],
        observer: Observer,
    ) -> None:
        self._wiring, self._reduce, self._sum, self.update = wiring, reduce, sum_over, update
        self.observer = observer
        self._mail = Mailbox(wiring.device, observer, wiring.deliveries, wiring.by_host)
        self._last = _last_backward(wiring.program)
        # A stage that need not compute ghosts may make what one reads that must.
        self._ghosts = any(replica.grouped for replica in wiring.replicas.values())

    def train(self, feeds: tuple[Microbatch, ...]) -> torch.Tensor:
        """One step; this rank's share of the loss (float64, on the CPU)."""
        with self._kernels():
            return self._trained(_Step(feeds, True))

    def _trained(self, step: _Step) -> torch.Tensor:
        loss: torch.Tensor | None = None
        for entry in self._wiring.program.instructions:
            if isinstance(entry, Compute):
                self._compute(step, entry.action)
            elif isinstance(entry, Message):
                self._message(step, entry)
            elif isinstance(entry, Collective):
                if entry.purpose == "loss":
                    loss = self._summed_loss(step, entry)
                elif entry.engine == "placer":
                    with self.observer.during("reduction"):
                        self._reduce(entry)
            else:
                with self.observer.during("optimizer"):
                    self.update()
        self._mail.finish()
        return step.loss if loss is None else loss

    @torch.no_grad()
    def evaluate(self, feeds: tuple[Microbatch, ...]) -> torch.Tensor:
        """The forwards of a step and their messages only."""
        with self._kernels():
            return self._evaluated(_Step(feeds, False))

    def _evaluated(self, step: _Step) -> torch.Tensor:
        loss: torch.Tensor | None = None
        for entry in self._wiring.program.instructions:
            if isinstance(entry, Compute) and entry.action.kind == "F":
                self._forward(step, entry.action)
            elif isinstance(entry, Message) and entry.kind == "activation":
                self._message(step, entry)
            elif isinstance(entry, Collective) and entry.purpose == "loss":
                loss = self._summed_loss(step, entry)
        self._mail.finish()
        return step.loss if loss is None else loss

    def _summed_loss(self, step: _Step, entry: Collective) -> torch.Tensor:
        total = step.loss.to(self._wiring.device)
        with self.observer.during("reduction"):
            self._sum(entry, total)
        return total.cpu()

    def _compute(self, step: _Step, action: Action) -> None:
        if action.kind == "F":
            return self._forward(step, action)
        if action.kind == "W":
            with self.observer.during("backward"):
                done = step.passes.pop((action.stage, action.microbatch), None)
                if done is not None and done.deferred is not None:
                    done.deferred.run()
            return None
        return self._backward(step, action)

    # -- forward

    def _forward(self, step: _Step, action: Action) -> None:
        stage, microbatch = action.stage, action.microbatch
        feed, replica = step.feeds[microbatch], self._wiring.replicas[stage]
        self._collect(step, "activation", stage, microbatch, step.values)
        if feed.ghost and not self._ghosts:
            return
        code = replica.stage.code
        leaves = {name: self._leaf(step, stage, microbatch, name) for name in code.consumes}
        inputs = [feed.inputs[name] for name in code.inputs]
        with self.observer.during("forward"), self._autocast():
            made = replica.forward(feed.mode, *inputs, *leaves.values())
        outputs = dict(zip(code.produces, made, strict=True))
        if self._wiring.loss in outputs and self._wiring.counts_loss and not feed.ghost:
            step.loss += outputs[self._wiring.loss].detach().double().cpu()
        step.passes[stage, microbatch] = _Pass(leaves, outputs, feed.ghost)

    def _leaf(self, step: _Step, stage: int, microbatch: int, name: str) -> torch.Tensor:
        """A value of an earlier stage, cut off from the autograd graph there."""
        home = self._wiring.home[name]
        if home in self._wiring.replicas:
            made = step.passes[home, microbatch].outputs[name]
            return made.detach().requires_grad_(made.requires_grad and step.training)
        feed = step.feeds[microbatch]
        shape = self._wiring.shapes(feed.mode.rows, stage)[name]
        value = _made_up(shape, self._wiring.device) if feed.ghost else step.values.pop((stage, microbatch, name))
        return value.requires_grad_(shape.requires_grad and step.training)

    def _autocast(self) -> torch.autocast:
        return torch.autocast(self._wiring.device.type, torch.bfloat16, enabled=self._wiring.autocast)

    def _kernels(self) -> AbstractContextManager[object]:
        """Attention that materialises its scores, where the plan was priced with that."""
        return sdpa_kernel(SDPBackend.MATH) if self._wiring.eager_attention else nullcontext()

    # -- backward

    def _backward(self, step: _Step, action: Action) -> None:
        stage, microbatch = action.stage, action.microbatch
        step.returned.clear()  # all that the backward before this one gave has been sent
        self._collect(step, "gradient", stage, microbatch, step.gradients)
        replica = self._wiring.replicas[stage]
        found = step.passes.get((stage, microbatch))
        if found is None:
            return
        with self.observer.during("backward"):
            replica.before_backward(action == self._last[stage])
            roots, gradients = self._roots(step, stage, microbatch, found)
            leaves = [leaf for leaf in found.leaves.values() if leaf.requires_grad]
            if action.kind == "B":
                if roots:
                    torch.autograd.backward(roots, gradients)
                del step.passes[stage, microbatch]
            else:
                found.deferred = backward_inputs(roots, gradients, leaves, replica.stage.parameters())
                found.outputs = {}
        if not found.ghost:
            self._return_gradients(step, stage, microbatch, found.leaves)

    def _roots(
        self, step: _Step, stage: int, microbatch: int, done: _Pass
    ) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
        """The outputs that gradients flow into, with what arrived for them."""
        roots, gradients = [], []
        for name, output in done.outputs.items():
            if not output.requires_grad:
                continue
            if name == self._wiring.loss and not done.ghost:
                arrived = torch.ones_like(output)
            else:
                arrived = step.gradients.pop((stage, microbatch, name), torch.zeros_like(output))
            roots.append(output)
            gradients.append(arrived)
        return roots, gradients

    def _return_gradients(self, step: _Step, stage: int, microbatch: int, leaves: Values) -> None:
        """Hand the gradients of what a stage read to the stages that made it; zeros where nothing flowed back."""
        for name, leaf in leaves.items():
            if not leaf.requires_grad:
                continue
            gradient = torch.zeros_like(leaf) if leaf.grad is None else leaf.grad
            home = self._wiring.home[name]
            if home in self._wiring.replicas:
                _add(step.gradients, (home, microbatch, name), gradient)
            else:
                step.returned[stage, microbatch, name] = gradient

    # -- messages

    def _message(self, step: _Step, message: Message) -> None:
        moved = self._moved(step, message)
        if message.direction == "receive":
            key = (message.kind, message.target_stage, message.microbatch)
            shapes = [replace(shape, shape=narrowed_shape(shape.shape, part)) for _, shape, part in moved]
            with self.observer.during("communication"):
                posted = self._mail.receive(message, shapes)
            step.receiving.setdefault(key, []).append(posted)
            return
        with self.observer.during("communication"):
            self._mail.send(
                message, [narrowed(self._outgoing(step, message, name, shape), part) for name, shape, part in moved]
            )

    def _moved(self, step: _Step, message: Message) -> list[tuple[str, TensorMeta, Ranges]]:
        """The values of a message, with what this rank holds of them and the part of that which moves.

        A value whose only readers feed neither loss nor buffers is not made, hence not sent.
        """
        feed = step.feeds[message.microbatch]
        stage = message.source_stage if message.direction == "send" else message.target_stage
        shapes, rows = self._wiring.shapes(feed.mode.rows, stage), (feed.first, feed.first + feed.rows)
        return [
            (name, shapes[name], self._wiring.parts.of(message, number, rows))
            for number, name in enumerate(message.values)
            if name in shapes
        ]

    def _outgoing(self, step: _Step, message: Message, name: str, shape: TensorMeta) -> torch.Tensor:
        stage, microbatch = message.source_stage, message.microbatch
        if message.kind == "activation":
            return step.passes[stage, microbatch].outputs[name]
        found = step.returned.get((stage, microbatch, name))
        if found is None:
            return torch.zeros(shape.shape, dtype=shape.dtype, device=self._wiring.device)
        return found

    def _collect(
        self, step: _Step, kind: str, stage: int, microbatch: int, into: dict[tuple[int, int, str], torch.Tensor]
    ) -> None:
        """Wait for what a computation reads; what comes in parts is put together, or added up (gradients)."""
        gathered: dict[tuple[int, str], torch.Tensor] = {}
        for posted in step.receiving.pop((kind, stage, microbatch), ()):
            source = posted.message.source_stage
            for (name, shape, part), tensor in zip(self._moved(step, posted.message), posted.wait(), strict=True):
                known = gathered.get((source, name))
                if known is None and not part:
                    gathered[source, name] = tensor
                    continue
                if known is None:
                    known = gathered[source, name] = torch.zeros(shape.shape, dtype=shape.dtype, device=tensor.device)
                place = narrowed(known, part)
                place.copy_(tensor) if kind == "activation" else place.add_(tensor)
        for (_, name), tensor in gathered.items():
            _add(into, (stage, microbatch, name), tensor)


def _add(into: dict[tuple[int, int, str], torch.Tensor], key: tuple[int, int, str], tensor: torch.Tensor) -> None:
    into[key] = into[key] + tensor if key in into else tensor


def _made_up(shape: TensorMeta, device: torch.device) -> torch.Tensor:
    """What a ghost computes with. Zeros will not do: the gradient of a norm there is not a number, nor times zero."""
    if not shape.dtype.is_floating_point:
        return torch.zeros(shape.shape, dtype=shape.dtype, device=device)
    return torch.arange(math.prod(shape.shape), device=device).cos().to(shape.dtype).view(shape.shape)


def _last_backward(program: Program) -> dict[int, Action]:
    """The action that completes the gradients of each stage."""
    last: dict[int, Action] = {}
    for entry in program.instructions:
        if isinstance(entry, Compute) and entry.action.kind != "F":
            last[entry.action.stage] = entry.action
    return last
