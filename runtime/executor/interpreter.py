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
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from functools import cached_property

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from placer.plans.plan import Plan
from placer.plans.schedule import Action
from placer.program.instructions import Collective, Compute, Instruction, Message, Program
from placer.runtime.data_parallel.replicas import Replica
from placer.runtime.executor.messages import Mailbox, MessageParts, Receiving, narrowed, narrowed_shape
from placer.runtime.observer import Observer
from placer.runtime.stages.microbatch import Microbatch
from placer.runtime.stages.shapes import TensorMeta
from placer.runtime.stages.split_backward import Deferred, backward_inputs, giving_zeros
from placer.spmd.cross_mesh import Ranges

Values = dict[str, torch.Tensor]
_Where = tuple[int, int]  # stage, microbatch
_Which = tuple[int, int, str]  # stage, microbatch, value
_Moved = tuple[str, TensorMeta, Ranges]  # value, what the rank holds of it, the part of that


@dataclass(slots=True)
class _Pass:
    """What a forward leaves for its backward."""

    leaves: Values
    outputs: Values
    ghost: bool
    cord: torch.Tensor | None = None
    deferred: Deferred | None = None


@dataclass(slots=True)
class _StepState:
    """The state of one step. update: what its OptimizerStep does; None where only forwards run."""

    feeds: tuple[Microbatch, ...]
    update: Callable[[], None] | None
    passes: dict[_Where, _Pass] = field(default_factory=dict)
    #: Forwards that ran, and values of stages whose backward is done for those of this rank that read them later.
    forwarded: set[_Where] = field(default_factory=set)
    left: dict[tuple[int, str], torch.Tensor] = field(default_factory=dict)
    receiving: dict[tuple[str, int, int], list[Receiving]] = field(default_factory=dict)
    values: dict[_Which, torch.Tensor] = field(default_factory=dict)
    gradients: dict[_Which, torch.Tensor] = field(default_factory=dict)
    returned: dict[_Which, torch.Tensor] = field(default_factory=dict)
    losses: list[torch.Tensor] = field(default_factory=list)

    @property
    def loss(self) -> torch.Tensor:
        """Of all microbatches that this rank has it of, where it was made: nobody waits for it before the step ends."""
        return torch.stack(self.losses).sum() if self.losses else torch.zeros((), dtype=torch.float64, device="cpu")

    @property
    def training(self) -> bool:
        """Whether there are backwards."""
        return self.update is not None


@dataclass(kw_only=True, eq=False)
class Interpreter:
    """Runs the steps of one rank.

    home: the stage that makes each value. shapes: of all values, for a number of rows, in a stage of this rank. parts:
    which part of what this rank holds a message carries. loss: the loss's reference. reached: the values that its
    gradient comes back to. reduce: does a collective of
    placer's own; sum_over: one over a given tensor. own_ranks: those that sum the loss of a step of training, where
    these are not all. tells: whether a value may have no gradient in some step: its maker has none of it then either.
    """

    plan: Plan
    program: Program
    device: torch.device
    replicas: Mapping[int, Replica]
    home: Mapping[str, int]
    shapes: Callable[[int, int], Mapping[str, TensorMeta]]
    parts: MessageParts
    mail: Mailbox
    loss: str
    reached: frozenset[str]
    reduce: Callable[[Collective], None]
    sum_over: Callable[[Collective, torch.Tensor], None]
    observer: Observer
    own_ranks: tuple[int, ...] = ()
    tells: bool = False

    def train(self, feeds: tuple[Microbatch, ...], update: Callable[[], None]) -> torch.Tensor:
        """One step, which `update` ends; this rank's share of the loss (float64, on the CPU)."""
        return self._carried_out(_StepState(feeds, update))

    @torch.no_grad()
    def evaluate(self, feeds: tuple[Microbatch, ...]) -> torch.Tensor:
        """The forwards of a step and their messages only."""
        return self._carried_out(_StepState(feeds, None))

    def _carried_out(self, step: _StepState) -> torch.Tensor:
        loss: torch.Tensor | None = None
        with self._kernels():
            for entry in self.program.instructions:
                if isinstance(entry, Collective) and entry.purpose == "loss":
                    loss = self._summed_loss(step, entry)
                elif step.update is not None or _is_forward(entry):
                    self._do(step, entry)
            self.mail.finish()
        return (step.loss if loss is None else loss).cpu()

    def _do(self, step: _StepState, entry: Instruction) -> None:
        if isinstance(entry, Compute):
            self._compute(step, entry.action)
        elif isinstance(entry, Message):
            self._message(step, entry)
        elif isinstance(entry, Collective):
            if entry.engine == "placer":
                with self.observer.during("reduction"):
                    self.reduce(entry)
        elif step.update is not None:
            with self.observer.during("optimizer"):
                step.update()

    @cached_property
    def _last(self) -> dict[int, Action]:
        """The action that completes the gradients of each stage."""
        computed = (entry.action for entry in self.program.instructions if isinstance(entry, Compute))
        return {action.stage: action for action in computed if action.kind != "F"}

    @cached_property
    def _ghosts(self) -> bool:
        """A stage that need not compute ghosts may make what one reads that must."""
        return any(replica.grouped for replica in self.replicas.values())

    def _summed_loss(self, step: _StepState, entry: Collective) -> torch.Tensor:
        if step.training and self.own_ranks:
            entry = replace(entry, ranks=self.own_ranks)
        if len(entry.ranks) == 1:
            return step.loss
        total = step.loss.to(self.device)
        with self.observer.during("reduction"):
            self.sum_over(entry, total)
        return total

    def _compute(self, step: _StepState, action: Action) -> None:
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

    def _forward(self, step: _StepState, action: Action) -> None:
        stage, microbatch = action.stage, action.microbatch
        feed, replica = step.feeds[microbatch], self.replicas[stage]
        step.forwarded.add((stage, microbatch))
        self._collect(step, "activation", stage, microbatch, step.values)
        if feed.ghost and not self._ghosts:
            return
        code = replica.stage.code
        leaves = {name: self._leaf(step, stage, microbatch, name) for name in code.consumes}
        inputs = [feed.inputs[name] for name in code.inputs]
        with self.observer.during("forward"), self._autocast():
            made = replica.forward(feed.mode, *inputs, *leaves.values())
        outputs = {
            name: value if name in self.reached else value.detach()
            for name, value in zip(code.produces, made, strict=True)
        }
        if self.loss in outputs and self.program.inner == 0 and not feed.ghost:
            step.losses.append(outputs[self.loss].detach().double())
        step.passes[stage, microbatch] = _Pass(leaves, outputs, feed.ghost, replica.cord())

    def _leaf(self, step: _StepState, stage: int, microbatch: int, name: str) -> torch.Tensor:
        """A value of an earlier stage, cut off from the autograd graph there."""
        home = self.home[name]
        if home in self.replicas:
            found = step.passes.get((home, microbatch))
            known = {} if found is None else found.outputs
            made = known[name] if name in known else step.left[microbatch, name]
            return made.detach().requires_grad_(made.requires_grad and step.training)
        feed = step.feeds[microbatch]
        shape = self.shapes(feed.mode.rows, stage)[name]
        value = _made_up(shape, self.device) if feed.ghost else step.values.pop((stage, microbatch, name))
        return value.requires_grad_(shape.requires_grad and step.training)

    def _autocast(self) -> torch.autocast:
        return torch.autocast(
            self.device.type, torch.bfloat16, enabled=self.plan.settings.precision == "bfloat16-autocast"
        )

    def _kernels(self) -> AbstractContextManager[object]:
        """Attention that materialises its scores, where the plan was priced with that."""
        return sdpa_kernel(SDPBackend.MATH) if self.plan.settings.attention == "eager" else nullcontext()

    # -- backward

    def _backward(self, step: _StepState, action: Action) -> None:
        stage, microbatch = action.stage, action.microbatch
        step.returned.clear()  # all that the backward before this one gave has been sent
        self._collect(step, "gradient", stage, microbatch, step.gradients)
        replica = self.replicas[stage]
        found = step.passes.get((stage, microbatch))
        if found is None:
            return
        if self.tells and found.ghost and not replica.grouped:
            self._leave(step, microbatch, found)
            del step.passes[stage, microbatch]
            return
        with self.observer.during("backward"):
            replica.heard.deaf = found.ghost
            replica.before_backward(action == self._last[stage])
            roots, gradients = self._roots(step, stage, microbatch, found)
            leaves = [leaf for leaf in found.leaves.values() if leaf.requires_grad]
            self._leave(step, microbatch, found)
            with giving_zeros(roots) if found.ghost else nullcontext():
                if action.kind == "B":
                    if roots:
                        torch.autograd.backward(roots, gradients)
                    del step.passes[stage, microbatch]
                else:
                    found.deferred = backward_inputs(roots, gradients, leaves, replica.stage.parameters())
                    found.outputs = {}
        if not found.ghost:
            self._return_gradients(step, stage, microbatch, found.leaves)

    def _leave(self, step: _StepState, microbatch: int, found: _Pass) -> None:
        """Keep what stages of this rank have yet to read: of what has no gradient, as the values of frozen layers, no
        backward waits for its readers."""
        later = [one.stage.code for at, one in self.replicas.items() if (at, microbatch) not in step.forwarded]
        read = {name for code in later for name in code.consumes}
        for name in read & found.outputs.keys():
            step.left[microbatch, name] = found.outputs[name]

    def _roots(
        self, step: _StepState, stage: int, microbatch: int, done: _Pass
    ) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
        """The outputs that gradients flow into, with what arrived for them."""
        roots, gradients = [], []
        for name, output in done.outputs.items():
            if not output.requires_grad:
                continue
            if name == self.loss and not done.ghost:
                arrived = torch.ones_like(output)
            elif self.tells and name != self.loss and (stage, microbatch, name) not in step.gradients:
                continue
            else:
                arrived = step.gradients.pop((stage, microbatch, name), torch.zeros_like(output))
            roots.append(output)
            gradients.append(arrived)
        if done.cord is not None:
            roots.append(done.cord)
            gradients.append(torch.zeros_like(done.cord))
        return roots, gradients

    def _return_gradients(self, step: _StepState, stage: int, microbatch: int, leaves: Values) -> None:
        """Hand the gradients of what a stage read to the stages that made it; zeros where nothing flowed back, or
        nothing where these are told so."""
        for name, leaf in leaves.items():
            if not leaf.requires_grad or (self.tells and leaf.grad is None):
                continue
            gradient = torch.zeros_like(leaf) if leaf.grad is None else leaf.grad
            home = self.home[name]
            if home in self.replicas:
                _add(step.gradients, (home, microbatch, name), gradient)
            else:
                step.returned[stage, microbatch, name] = gradient

    # -- messages

    def _message(self, step: _StepState, message: Message) -> None:
        moved = self._moved(step, message)
        if message.direction == "receive":
            key = (message.kind, message.target_stage, message.microbatch)
            shapes = [replace(shape, shape=narrowed_shape(shape.shape, part)) for _, shape, part in moved]
            if message.tells:
                shapes.append(TensorMeta(shape=(len(message.values),), dtype=torch.uint8, requires_grad=False))
            with self.observer.during("communication"):
                posted = self.mail.receive(message, shapes)
            step.receiving.setdefault(key, []).append(posted)
            return
        with self.observer.during("communication"):
            carried = [narrowed(self._outgoing(step, message, name, shape), part) for name, shape, part in moved]
            if message.tells:
                stage, microbatch = message.source_stage, message.microbatch
                there = [(stage, microbatch, name) in step.returned for name in message.values]
                carried.append(torch.tensor(there, dtype=torch.uint8, device=self.device))
            self.mail.send(message, carried)

    def _moved(self, step: _StepState, message: Message) -> list[_Moved]:
        """The values of a message, with what this rank holds of them and the part of that which moves.

        A value whose only readers feed neither loss nor buffers is not made, hence not sent.
        """
        feed = step.feeds[message.microbatch]
        stage = message.source_stage if message.direction == "send" else message.target_stage
        shapes, rows = self.shapes(feed.mode.rows, stage), (feed.first, feed.first + feed.rows)
        return [
            (name, shapes[name], self.parts.of(message, number, rows))
            for number, name in enumerate(message.values)
            if name in shapes
        ]

    def _outgoing(self, step: _StepState, message: Message, name: str, shape: TensorMeta) -> torch.Tensor:
        stage, microbatch = message.source_stage, message.microbatch
        if message.kind == "activation":
            return step.passes[stage, microbatch].outputs[name].to(shape.dtype)
        found = step.returned.get((stage, microbatch, name))
        if found is None:
            return torch.zeros(shape.shape, dtype=shape.dtype, device=self.device)
        return found

    def _collect(
        self, step: _StepState, kind: str, stage: int, microbatch: int, into: dict[_Which, torch.Tensor]
    ) -> None:
        """Wait for what a computation reads; what comes in parts is put together, or added up (gradients)."""
        gathered: dict[tuple[int, str], torch.Tensor] = {}
        for posted in step.receiving.pop((kind, stage, microbatch), ()):
            source = posted.message.source_stage
            for (name, shape, part), tensor in self._arrived(step, posted):
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

    def _arrived(self, step: _StepState, posted: Receiving) -> Iterable[tuple[_Moved, torch.Tensor]]:
        """What a message brought, without the gradients that are none."""
        moved, tensors = self._moved(step, posted.message), self.mail.wait(posted)
        if not posted.message.tells:
            return zip(moved, tensors, strict=True)
        there = dict(zip(posted.message.values, tensors[-1].tolist(), strict=True))
        return [(one, tensor) for one, tensor in zip(moved, tensors[:-1], strict=True) if there[one[0]]]


def _add(into: dict[_Which, torch.Tensor], key: _Which, tensor: torch.Tensor) -> None:
    into[key] = into[key] + tensor if key in into else tensor


def _made_up(shape: TensorMeta, device: torch.device) -> torch.Tensor:
    """What a ghost computes with. Zeros will not do: the gradient of a norm there is not a number, nor times zero."""
    if not shape.dtype.is_floating_point:
        return torch.zeros(shape.shape, dtype=shape.dtype, device=device)
    return torch.arange(math.prod(shape.shape), device=device).cos().to(shape.dtype).view(shape.shape)


def _is_forward(entry: Instruction) -> bool:
    """Whether an evaluation does it too."""
    if isinstance(entry, Compute):
        return entry.action.kind == "F"
    return isinstance(entry, Message) and entry.kind == "activation"
