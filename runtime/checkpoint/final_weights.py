"""The weights of a running plan as a Hugging Face folder: ranks write their parts, the first puts files together.

Between the two they lie in a checkpoint beside the folder, which is removed: no process has more than one file's worth.
What a killed run left there is nobody's: it is removed first.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from placer.plans.plan import Plan
from placer.runtime.checkpoint.checkpoint import Checkpoints
from placer.runtime.checkpoint.compatibility import planned_model
from placer.runtime.checkpoint.folder import Progress, reader_of
from placer.runtime.checkpoint.stateful import State
from placer.runtime.checkpoint.training_state import TrainingState
from placer.runtime.distributed.world import World
from placer.runtime.weights.hf_export import Exported, export_weights


class _Weights:
    """Parameters and buffers without the optimizer, to be saved only."""

    def __init__(self, state: TrainingState) -> None:
        self._state = state

    def state_dict(self) -> State:
        return self._state.weights()

    def load_state_dict(self, state: State) -> None:
        raise AssertionError("what is exported is not loaded")


def between_of(folder: str) -> Path:
    """The folder of the checkpoint that the weights of `folder` are made of."""
    final = Path(folder).resolve()
    return final.with_name(f".{final.name}.checkpoint")


def save_weights(plan: Plan, world: World, state: TrainingState, folder: str) -> Exported:
    """Write the weights to the new `folder`; every rank calls it. Raises UsageError, ExecutionError as `Checkpoints`
    and `export_weights` do."""
    between = between_of(folder)
    checkpoints = Checkpoints(between, world, fingerprint=plan.model.fingerprint)
    checkpoints.begin_anew()
    path = checkpoints.save(_Weights(state), Progress(step=0, position=0))
    try:
        return checkpoints.agree(lambda: export_weights(reader_of(path), planned_model(plan), folder))
    finally:
        if world.first:
            shutil.rmtree(between, ignore_errors=True)
