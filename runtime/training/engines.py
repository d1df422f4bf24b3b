"""What the training loop runs a plan with: placer's own engine, measured and saved, or DeepSpeed's."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Protocol

from placer.plans.ledger import Ledger
from placer.plans.plan import Plan
from placer.rules.expert_loads import expert_counts
from placer.runtime.checkpoint.training_state import TrainingState
from placer.runtime.distributed.world import World
from placer.runtime.executor.load import load
from placer.runtime.measuring.expert_tokens import ExpertLayer, Tally, expert_layers, tallies
from placer.runtime.measuring.measurement import Measurement
from placer.runtime.stages.microbatch import Batch
from placer.runtime.training.run_report import ExecuteOptions


class Engine(Protocol):
    """One rank of a running plan; every rank calls it alike. `steps` done so far key the dropout masks."""

    steps: int

    def step(self, batch: Batch) -> float:
        """Train on a global batch; its loss."""
        ...

    def evaluate(self, batch: Batch) -> float:
        """The loss of a global batch, without training."""
        ...

    def set_learning_rate(self, rate: float) -> None:
        """Use `rate` from the next step on."""
        ...


@dataclass(frozen=True, kw_only=True)
class Loaded:
    """An engine with what watches it; state and measurement are None where it keeps its own."""

    runs: Engine
    state: TrainingState | None = None
    measurement: Measurement | None = None
    tallies: dict[str, Tally] = field(default_factory=dict)

    def step(self, index: int) -> AbstractContextManager[None]:
        """Around the `index`-th step of the run."""
        if self.measurement is None or self.state is None:
            return nullcontext()
        return self.measurement.step(index, self.state)

    def reading(self) -> AbstractContextManager[None]:
        """Around the making of a batch."""
        return self.measurement.during("data") if self.measurement else nullcontext()

    def consolidate(self) -> None:
        """Bring all replicas to the same state, where steps do not."""
        if self.state is not None:
            self.state.consolidate()

    def ledger(self) -> Ledger | None:
        """What was measured."""
        return self.measurement.ledger() if self.measurement else None

    def experts(self, plan: Plan, steps: int) -> tuple[ExpertLayer, ...]:
        """The tokens of the experts of every layer in the `steps` steps of this run; all ranks call it."""
        return expert_layers(plan, steps, self.tallies) if self.measurement and expert_counts(plan.graph) else ()


def loaded(plan: Plan, options: ExecuteOptions, world: World) -> Loaded:
    """The engine that `options` ask for, with the weights of the plan's seed or of the folder they name."""
    if options.engine == "deepspeed":
        from placer.runtime import deepspeed  # an extra

        return Loaded(runs=deepspeed.load(plan, weights=options.weights, timeout_seconds=options.timeout_seconds))
    executor = load(
        plan, weights=options.weights, timeout_seconds=options.timeout_seconds, synchrony=options.kept_together,
        compile=options.compile,
    )  # fmt: skip
    measurement = Measurement(plan, world.device, world.rank, hidden=options.compile == "inductor")
    executor.relay.target = measurement
    counted = tallies(executor.stages.values()) if expert_counts(plan.graph) else {}
    return Loaded(runs=executor, state=TrainingState(executor), measurement=measurement, tallies=counted)
