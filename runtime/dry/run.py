"""dry_run(plan, rank): one step of one rank of any plan, on fake tensors, in a world where nobody answers.

    plan -> the model captured without weights -> the executor that `load` makes -> a step -> what it did and held

What runs is the runtime itself: the rank's blocks as lowered, FSDP2 or DDP, the interpreter over the rank's program,
the optimizer. Its tensors have shapes and no bytes. What the ranks are held against:

    the program     what was sent and received is what the rank's program says (kind, peer, shape, type, order)
    the peers       the programs of all ranks it communicates with say the same (`peer_disagreements`)
    the replica     what the devices of its replica exchange inside blocks: they are run dry too, over one microbatch of
                    each size, and compared

Memory is measured as in a run (`Measurement`), by category, on the processor's kernels.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from placer import legality
from placer.errors import UsageError
from placer.plans.ledger import MemoryBytes
from placer.plans.plan import Plan
from placer.plans.transfers import position_of
from placer.program.instructions import Program
from placer.program.lowering import lower
from placer.program.peers import Disagreement, peer_disagreements
from placer.program.ranks import connected_with, position_of_rank, replica_ranks
from placer.runtime.checkpoint.training_state import TrainingState, require_optimizer_state
from placer.runtime.dry.fake_tensors import bare, fake_batch, faked, shaped
from placer.runtime.dry.fake_world import Answers, fake_world
from placer.runtime.dry.replica_agreement import inside_disagreements
from placer.runtime.executor.executor import Executor
from placer.runtime.executor.load import loaded_alone
from placer.runtime.measuring.communication_record import Communication, Recorder, compared
from placer.runtime.measuring.measurement import WATCHED_STEP, Measurement
from placer.runtime.stages.captured_model import CapturedModel, captured
from placer.runtime.stages.microbatch import microbatches_of
from placer.runtime.weights.meta_model import prepared_model

CPU = torch.device("cpu")


@dataclass(frozen=True, slots=True, kw_only=True)
class DryRun:
    """What `rank` did and held in one step.

    program: what it had to do. communications: what it sent, received and reduced, in order, `inside` those of them
    that its program leaves to its blocks. differences: from its program. disagreements: with its peers.
    memory: by category, each at its own peak; allocated_bytes: the most that was alive at once. predicted: the
    ledger's, None where the plan has none; available_bytes: of the device.
    """

    program: Program
    device_name: str
    communications: tuple[Communication, ...]
    inside: tuple[Communication, ...]
    differences: tuple[str, ...]
    disagreements: tuple[Disagreement, ...]
    memory: MemoryBytes
    allocated_bytes: int
    predicted: MemoryBytes | None
    available_bytes: int

    @property
    def needed_bytes(self) -> int:
        """Of the device: what was alive at once and the overhead that only a device has, as predicted."""
        return self.allocated_bytes + (self.predicted.overhead if self.predicted else 0)

    @property
    def fits(self) -> bool:
        """Whether the device has that."""
        return self.needed_bytes <= self.available_bytes

    @property
    def passed(self) -> bool:
        """Whether it fits and all agree."""
        return self.fits and not self.differences and not self.disagreements


class DryRuns:
    """Dry runs of the ranks of one plan: the model is captured once and the programs lowered once.

    model: where the plan cannot rebuild it; capture: of this model in the plan's precision, where one was made before.
    Raises IllegalPlanError for a plan that breaks a rule other than memory, StalePlanError and UsageError as
    `placer.runtime.load` does.
    """

    @torch.inference_mode(False)  # gradients are on in it, wherever the caller stands
    def __init__(self, plan: Plan, model: nn.Module | None = None, capture: CapturedModel | None = None) -> None:
        broken = legality.but_memory(legality.check(plan))
        if broken:
            raise legality.error_of(broken)
        self._plan = plan
        prepared = prepared_model(plan, model, torch.device("meta"))
        self._capture = capture or captured(plan, shaped(prepared, CPU))
        self._model = bare(prepared)
        self.programs = lower(plan)

    @torch.inference_mode(False)  # gradients are on in it, wherever the caller stands
    def of(self, rank: int, programs: Sequence[Program] = ()) -> DryRun:
        """The dry run of `rank`. `programs` stand for those that the plan gives the same ranks.

        Raises UsageError for a rank that the plan does not have.
        """
        plan = self._plan
        if not 0 <= rank < plan.world_size:
            raise UsageError(f"--rank {rank}: the plan has ranks 0 to {plan.world_size - 1}; give one of them")
        given = {program.rank: program for program in programs}
        every = [given.get(program.rank, program) for program in self.programs]
        program = self.programs[rank]
        replica = _replica(plan, rank)
        found = self._measured(plan, rank)
        differences, inside = compared(program, found.communications, replica)
        stage = plan.stages[program.stages[0]]
        chip = plan.cluster.devices[program.device]
        return DryRun(
            program=program,
            device_name=chip.name,
            communications=found.communications,
            inside=inside,
            differences=differences,
            disagreements=(*peer_disagreements(given.get(rank, program), every), *self._inside(rank, replica, inside)),
            memory=found.memory,
            allocated_bytes=found.allocated,
            predicted=plan.ledger.memory[position_of(plan)[plan.stages.index(stage)]] if plan.ledger else None,
            available_bytes=chip.memory_bytes,
        )

    def _inside(self, rank: int, replica: tuple[int, ...], own: tuple[Communication, ...]) -> tuple[Disagreement, ...]:
        """How the devices of the replica disagree with `rank`, which did `own`, inside their blocks."""
        if len(replica) == 1:
            return ()
        short = _shortened(self._plan)
        found = {
            member: own if short == self._plan and member == rank else self._inside_of(short, member, replica)
            for member in replica
        }
        return inside_disagreements(rank, found.pop(rank), found)

    def _inside_of(self, short: Plan, member: int, replica: tuple[int, ...]) -> tuple[Communication, ...]:
        """What `member` communicates inside its blocks."""
        own, position = self.programs[member], position_of_rank(short, member)
        like = lower(short, (connected_with(short, position, own.replica),), (own.inner,))
        program = next(program for program in like if program.rank == member)
        with fake_world(member, short.world_size):
            executor, mode = self._loaded(short, member)
            with mode, Answers(), Recorder() as recorder:
                _step(executor, short)
        return compared(program, recorder.records, replica)[1]

    def _measured(self, plan: Plan, rank: int) -> Measurement:
        """A step of `rank`, watched."""
        with fake_world(rank, plan.world_size):
            executor, mode = self._loaded(plan, rank)
            with mode, Answers():
                require_optimizer_state(executor.updater)
                if _settles(plan):
                    _step(executor, plan)
            if _settles(plan):
                executor.settle()
                with mode, Answers():
                    _step(executor, plan)  # it shows the buckets as they are from now on
            executor.relay.target = measurement = Measurement(plan, CPU, rank)
            state = _FakeState(executor, mode)
            with mode, Answers(), measurement.step(WATCHED_STEP, state):
                _step(executor, plan)
        return measurement

    def _loaded(self, plan: Plan, rank: int) -> tuple[Executor, FakeTensorMode]:
        """The executor of `rank`, its tensors fake; made outside of the mode, as meshes hold real numbers."""
        mode = FakeTensorMode(allow_non_fake_inputs=True)
        executor = loaded_alone(
            plan, self._model, self._capture, rank=rank, device=CPU, fill=lambda stage: faked(stage, mode, CPU)
        )
        return executor, mode


class _FakeState:
    """What an executor holds; what its engines do, as ops under a fake mode see it."""

    def __init__(self, executor: Executor, mode: FakeTensorMode) -> None:
        held = TrainingState(executor).held
        real = (torch.empty(0, dtype=torch.uint8).set_(storage) for storage in held.lasting)
        self._seen = [mode.from_tensor(tensor) for tensor in real]  # the mode forgets what nobody holds
        self.held = replace(held, lasting=tuple(tensor.untyped_storage() for tensor in self._seen))


def dry_run(plan: Plan, rank: int, *, model: nn.Module | None = None, programs: Sequence[Program] = ()) -> DryRun:
    """One step of `rank` on fake tensors; `programs` stand for those of the same ranks. Raises as `DryRuns`."""
    return DryRuns(plan, model).of(rank, programs)


def _step(executor: Executor, plan: Plan) -> None:
    """One step on a batch of which all labels count."""
    parts = microbatches_of(
        fake_batch(plan, CPU),
        plan,
        position_of_rank(plan, executor.rank),
        executor.feeder.replica,
        sums=executor.feeder.values.stand_ins,
        step=0,
        training=True,
        device=CPU,
    )
    executor.train(parts)


def _settles(plan: Plan) -> bool:
    """Whether DDP runs the plan, whose first step is unlike the others."""
    stage = plan.stages[0]
    return len(plan.stages) == 1 and stage.replicas > 1 and not stage.by_fsdp


def _replica(plan: Plan, rank: int) -> tuple[int, ...]:
    position = position_of_rank(plan, rank)
    number = (rank - plan.first_ranks[position]) // plan.meshes[position].degree
    return replica_ranks(plan, position, number)


def _shortened(plan: Plan) -> Plan:
    """The plan with one microbatch of each size (as many as positions where the schedule runs in rounds)."""
    sizes = tuple(sorted(set(plan.microbatches), reverse=True))
    rounds = plan.positions if plan.schedule == "interleaved" else 1
    return replace(plan, microbatches=tuple(size for size in sizes for _ in range(rounds)))
