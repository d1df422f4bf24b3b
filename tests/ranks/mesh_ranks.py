"""What ranks run for the tests of stages on meshes of different shapes, found by import."""

from __future__ import annotations

from unittest import mock

import torch

from examples.parity.cases import capture_of, run_case
from placer import tracer
from placer.plans.plan import Plan
from placer.program.instructions import Message
from placer.runtime import VerifyReport, load
from placer.runtime.executor.messages import MessageParts
from placer.spmd.cross_mesh import Range, Ranges


def trained_weights(plan: Plan) -> dict[str, torch.Tensor]:
    """The whole model's weights after two steps, as this rank puts them together."""
    executor = load(plan, capture=capture_of(plan))
    for step in range(2):
        executor.step(tracer.random_batch(plan.graph, plan.rows, step))
    return executor.full_state_dict()


def with_rows_exchanged(plan: Plan) -> VerifyReport:
    """A runtime that takes the gradients of its first rows for those of its last ones."""
    of = MessageParts.of

    def turned(self: MessageParts, message: Message, number: int, rows: tuple[int, int]) -> Ranges:
        found = of(self, message, number, rows)
        if message.kind == "gradient" and message.direction == "receive" and found:
            last = rows[1] - rows[0]
            return tuple(Range(one.dim, last - one.stop, last - one.start) for one in found)
        return found

    with mock.patch.object(MessageParts, "of", turned):
        return run_case(plan, 1)
