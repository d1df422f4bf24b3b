"""What real ranks measure, beside which a dry run is laid; found by import."""

from __future__ import annotations

import torch

from placer import runtime
from placer.plans.ledger import MemoryBytes
from placer.plans.plan import Plan
from placer.runtime.checkpoint.training_state import TrainingState
from placer.runtime.measuring.communication_record import Communication
from placer.runtime.measuring.measurement import WATCHED_STEP, Measurement
from placer.runtime.stages.captured_model import captured
from placer.runtime.weights.meta_model import prepared_model
from placer.tracer import random_batch


def measured(plan: Plan) -> tuple[MemoryBytes, int, tuple[Communication, ...]]:
    """Memory by category, what was alive at once, and what was communicated, in a step of a real run."""
    capture = captured(plan, prepared_model(plan, None, torch.device("cpu")))
    executor = runtime.load(plan, capture=capture)
    measurement = Measurement(plan, executor.device, executor.rank)
    executor.relay.target = measurement
    for step in range(WATCHED_STEP + 1):
        batch = random_batch(plan.graph, plan.rows, step)
        with measurement.step(step, TrainingState(executor)):
            executor.step(batch)
    return measurement.memory, measurement.allocated, measurement.communications
