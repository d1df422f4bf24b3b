"""Which of its messages a rank knows to have arrived, so that it need not keep their tensors until the step ends.

A rank waits for what an action reads before it computes it, and sends what the action made after that. So a message
that an action of the peer made proves that all has arrived which the peer read for that action or for one before it.
"""

from __future__ import annotations

from placer.plans import Plan
from placer.program import Message
from placer.schedule import actions

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
