"""What ranks run for the tests of plans whose replicas are several devices, found by import."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from unittest import mock

import torch
from torch import distributed as dist

from examples.parity.cases import capture_of, run_case
from placer import tracer
from placer.plans.plan import Plan
from placer.plans.transfers import position_of
from placer.program.instructions import Collective
from placer.program.lowering import lower
from placer.program.ranks import replica_ranks
from placer.runtime import VerifyReport, load
from placer.runtime.checkpoint.checkpoint import Checkpoints
from placer.runtime.checkpoint.folder import Progress
from placer.runtime.checkpoint.training_state import TrainingState
from placer.runtime.data_parallel.gradients import Gradients
from placer.runtime.distributed.world import World
from placer.runtime.measuring.communication_record import Recorder, compare
from placer.runtime.measuring.expert_tokens import ExpertLayer, expert_layers, tallies
from placer.runtime.spmd import Axis, collectives, conversions
from placer.runtime.spmd.conversions import Way
from placer.runtime.verify.batches import uneven_batch


def equal(plan: Plan, steps: int = 3) -> VerifyReport:
    """Verify a plan."""
    return run_case(plan, steps)


def exchanges_of_a_step(plan: Plan) -> int:
    """How often a rank sends rows, or how many of them, to all others in one step."""
    executor, batch = load(plan, capture=capture_of(plan)), uneven_batch(plan, 0)
    with mock.patch.object(dist, "all_to_all_single", wraps=dist.all_to_all_single) as sent:
        executor.step(batch)
    return sent.call_count


def rows_from_others(plan: Plan) -> list[int]:
    """Bytes that a rank got of others in each exchange of a step, in order."""
    executor, batch = load(plan, capture=capture_of(plan)), uneven_batch(plan, 0)
    plain, got = Axis.exchange, list[int]()

    def counted(axis: Axis, parts: list[torch.Tensor], shapes: list[tuple[int, ...]]) -> list[torch.Tensor]:
        made = plain(axis, parts, shapes)
        got.append(sum(one.nbytes for rank, one in enumerate(made) if rank != axis.rank))
        return made

    with mock.patch.object(Axis, "exchange", counted):
        executor.step(batch)
    return got


def without_sums_backward(plan: Plan) -> VerifyReport:
    """A runtime in which a gradient that each rank has a part of is taken for the whole."""

    def forgetful(gradient: torch.Tensor, axis: Axis, by: Way) -> torch.Tensor:
        return gradient if by.name == "all_reduce" else conversions.moved(gradient, axis, by)

    with mock.patch.object(conversions, "returned", forgetful):
        return run_case(plan, 1)


def with_pieces_exchanged(plan: Plan) -> VerifyReport:
    """A runtime that hands each rank its gradient in the wrong order."""

    def turned(gradient: torch.Tensor, axis: Axis, by: Way) -> torch.Tensor:
        made = conversions.moved(gradient, axis, by)
        return made.flip(by.to) if by.name in ("reduce_scatter", "cut") else made

    with mock.patch.object(conversions, "returned", turned):
        return run_case(plan, 1)


def without_neighbours_gradients(plan: Plan) -> VerifyReport:
    """A runtime that forgets what neighbours found for the rows they were lent."""
    returned = collectives.rows_returned

    def alone(
        gradient: torch.Tensor, axis: Axis, dim: int, size: int, windows: tuple[collectives.Rows, ...]
    ) -> torch.Tensor:
        owned = axis.bounds(size)
        start, end = collectives.shared(owned[axis.rank], windows[axis.rank])
        first = windows[axis.rank][0]
        mine = torch.zeros_like(gradient)
        mine.narrow(dim, start - first, end - start).copy_(gradient.narrow(dim, start - first, end - start))
        return returned(mine, axis, dim, size, windows)

    with mock.patch.object(collectives, "rows_returned", alone):
        return run_case(plan, 1)


def without_sum_of_parts(plan: Plan) -> VerifyReport:
    """A runtime that does not sum the parts of shared parameters' gradients."""
    reduce = Gradients.reduce

    def forgetful(self: Gradients, collective: Collective) -> None:
        if collective.purpose != "parts":
            reduce(self, collective)

    with mock.patch.object(Gradients, "reduce", forgetful):
        return run_case(plan, 1)


def held(plan: Plan) -> dict[str, tuple[int, ...]]:
    """The shape of every parameter on this rank."""
    executor = load(plan, capture=capture_of(plan))
    return {
        name: tuple(parameter.shape)
        for stage in executor.stages.values()
        for name, parameter in stage.own_parameters().items()
    }


def trained_and_loaded(plan: Plan) -> tuple[float, float]:
    """The loss after two steps, and that of a fresh executor that was given the state of the first."""
    batch = tracer.random_batch(plan.graph, plan.rows, 3)
    first = load(plan, capture=capture_of(plan))
    for _ in range(2):
        first.step(batch)
    state = first.full_state_dict()
    again = load(plan, capture=capture_of(plan))
    again.load_state_dict(state)
    return first.evaluate(batch), again.evaluate(batch)


def resumed(
    plan: Plan, other: Plan, folder: str, given: Sequence[dict[str, torch.Tensor]] = ()
) -> tuple[list[float], list[float]]:
    """The losses of steps 2 and 3 under `plan`, and of the same steps under `other` from a checkpoint after step 1, on
    batches that are given or random."""
    world = World(rank=dist.get_rank(), size=dist.get_world_size(), device=torch.device("cpu"))
    batches = list(given) or [tracer.random_batch(plan.graph, plan.rows, step) for step in range(4)]
    first = load(plan, capture=capture_of(plan))
    for batch in batches[:2]:
        first.step(batch)
    checkpoints = Checkpoints(folder, world, fingerprint=plan.model.fingerprint)
    checkpoints.save(TrainingState(first), Progress(step=2, position=0))
    again = load(other, capture=capture_of(other))
    checkpoints.resume(TrainingState(again))
    again.steps = first.steps
    return [first.step(batch) for batch in batches[2:]], [again.step(batch) for batch in batches[2:]]


def differences(plan: Plan) -> tuple[int, tuple[str, ...]]:
    """The communications of this rank's program beyond its own replica, and what a recorded step did otherwise.

    Within its replica a rank also does what its ops and conversions need, which no program lists.
    """
    program, executor = lower(plan)[dist.get_rank()], load(plan, capture=capture_of(plan))
    for step in range(2):  # DDP fills its buckets anew in the second step
        executor.step(tracer.random_batch(plan.graph, plan.rows, step))
    with Recorder() as recorder:
        executor.step(tracer.random_batch(plan.graph, plan.rows, 2))
    own = replica_ranks(plan, position_of(plan)[program.stages[0]], program.replica)
    kept = tuple(e for e in program.instructions if not isinstance(e, Collective) or e.ranks != own)
    beyond = [entry for entry in recorder.records if entry.ranks != own]
    return len(beyond), compare(replace(program, instructions=kept), beyond)


def code_of(plan: Plan, block: int) -> str:
    """The code of a block on this rank."""
    executor = load(plan, capture=capture_of(plan))
    return next(code.module.code for s in executor.stages.values() for code in s.code.blocks if code.index == block)


def counted_tokens(plan: Plan, steps: int) -> tuple[ExpertLayer, ...]:
    """The tokens of experts in some steps and an evaluation."""
    executor = load(plan, capture=capture_of(plan))
    counted = tallies(executor.stages.values())
    for step in range(steps):
        executor.step(tracer.random_batch(plan.graph, plan.rows, step))
    executor.evaluate(tracer.random_batch(plan.graph, plan.rows, steps))
    return expert_layers(plan, steps, counted)
