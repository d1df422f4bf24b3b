"""What ranks give that train a plan, and the plain loop of PyTorch on one device that it is laid beside."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import cast

import torch
import torch.distributed as dist

from examples.parity.cases import capture_of, run_case
from placer import tracer
from placer.errors import UsageError
from placer.plans.plan import Plan
from placer.program.lowering import lower
from placer.runtime import load
from placer.runtime.data_parallel.optimizer import optimizer_factory
from placer.runtime.measuring.communication_record import Recorder, compare
from placer.runtime.stages.captured_model import run_dtype
from placer.runtime.verify.report import VerifyReport
from placer.runtime.weights.meta_model import prepared_model
from weight_ranks import world

STEPS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Trained:
    """The losses of some steps, the state after them by the model's own names, and a loss in evaluation."""

    losses: tuple[float, ...]
    state: dict[str, torch.Tensor]
    evaluated: float


def trained(plan: Plan) -> Trained:
    """What the ranks of `plan` make of the model's own weights."""
    with world():
        executor = load(plan, capture=capture_of(plan))
        losses = tuple(executor.step(batch) for batch in batches(plan))
        return Trained(
            losses=losses, state=executor.full_state_dict(), evaluated=executor.evaluate(next(batches(plan)))
        )


def reached(
    plan: Plan, given: list[dict[str, torch.Tensor]], compile: str = ""
) -> tuple[tuple[frozenset[str], ...], dict[str, torch.Tensor]]:
    """The weights that have a gradient in each step on these batches, on rank 0, tied ones by each
    name, and the state after them."""
    with world():
        executor, found = load(plan, capture=capture_of(plan), compile=compile), []
        executor.keeps_gradients = True
        for batch in given:
            executor.step(batch)
            found.append(frozenset(executor.last_gradients))
        return tuple(found), executor.full_state_dict()


def done_otherwise(plan: Plan, given: list[dict[str, torch.Tensor]]) -> tuple[str, ...]:
    """What this rank communicates otherwise than its program says, in steps on these batches."""
    with world():
        executor, found = load(plan, capture=capture_of(plan)), tuple[str, ...]()
        executor.step(given[0])  # which ends with what `load` left open
        for batch in given:
            with Recorder() as recorder:
                executor.step(batch)
            found += compare(lower(plan)[executor.rank], recorder.records)
        return found


def group_after_close(plan: Plan) -> bool:
    """Whether the process group that this rank had before it loaded `plan` is there when the executor is closed."""
    with world():
        executor = load(plan, capture=capture_of(plan))
        executor.step(next(batches(plan)))
        executor.close()
        return dist.is_initialized()


def refusal(call: Callable[[], object]) -> str:
    """What is said where a call is misuse, nothing where it is not."""
    try:
        call()
    except UsageError as error:
        return str(error)
    return ""


def given_own_batches(plan: Plan) -> str:
    """What is said where each rank gives a step rows of its own, as a DistributedSampler deals them."""
    with world():
        executor = load(plan, capture=capture_of(plan))
        own = {name: values.roll(dist.get_rank(), 0) for name, values in next(batches(plan)).items()}
        return refusal(lambda: executor.step(own))


def given_own_weights(plan: Plan, permuted: bool) -> str:
    """What every rank is told where the last one's model differs from the others' in one number, or in the order
    of those of a weight."""
    with world():
        model = prepared_model(plan, None, torch.device("cpu"))
        if dist.get_rank() == dist.get_world_size() - 1:
            with torch.no_grad():
                flat = next(one for one in model.parameters() if one.dim() > 1 and one.any()).view(-1)
                if permuted:
                    flat.copy_(flat.flip(0))
                else:
                    flat[-1] += 1e-9
        return refusal(lambda: load(plan, model, capture=capture_of(plan)))


def given_unlike_shapes(plan: Plan) -> str:
    """What every rank is told where the last one alone is given fewer rows."""
    with world():
        executor, batch = load(plan, capture=capture_of(plan)), next(batches(plan))
        last = dist.get_rank() == dist.get_world_size() - 1
        fewer = {name: values[:-1] if last else values for name, values in batch.items()}
        return refusal(lambda: executor.step(fewer))


def given_another_constant(plan: Plan, name: str) -> tuple[str, str]:
    """What is said of a step with its own values, and of the next, whose input `name` has another on every rank."""
    with world():
        executor, batch = load(plan, capture=capture_of(plan)), next(batches(plan))
        other = {**batch, name: batch[name].flip(-1)}
        return refusal(lambda: executor.step(batch)), refusal(lambda: executor.step(other))


def given_more_than_inputs(plan: Plan) -> tuple[float, float]:
    """The loss of a step, and that of one more executor whose batches hold things beside the inputs, others by rank."""
    with world():
        batch, rank = next(batches(plan)), dist.get_rank()
        more = cast("dict[str, torch.Tensor]", {**batch, "names": [f"row {rank}"], "own": torch.tensor(rank)})
        plain, other = (load(plan, capture=capture_of(plan)).step(given) for given in (batch, more))
        return plain, other


def asked_after_a_failure(plan: Plan) -> str:
    """What is said where a step is asked for after one that failed on rank 0 as it updated."""
    with world():
        executor, batch = load(plan, capture=capture_of(plan)), next(batches(plan))
        update = executor.updater.step

        def failing(scale: float) -> None:
            if dist.get_rank() == 0:
                raise ValueError("a step that fails")
            update(scale)

        executor.updater.step = failing  # type: ignore[method-assign, assignment]
        try:
            executor.step(batch)
        except ValueError:
            executor.updater.step = update  # type: ignore[method-assign]
            return refusal(lambda: executor.step(batch))
    return ""


def asked_for_one_rate(plan: Plan) -> str:
    """What is said where one learning rate is asked for and this rank has groups of one alone, its peer of another."""
    with world():
        rate = 0.1 + dist.get_rank()
        executor = load(plan, capture=capture_of(plan), optimizer=lambda given: torch.optim.SGD(given, lr=rate))
        return refusal(lambda: executor.set_learning_rate(0.5))


def drawn_from(plan: Plan, begun: int) -> tuple[float, ...]:
    """The losses of steps of ranks whose generators each stand elsewhere."""
    with world():
        executor = load(plan, capture=capture_of(plan))
        torch.manual_seed(begun + executor.rank)
        return tuple(executor.step(batch) for batch in batches(plan))


def loaded_again(plan: Plan) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
    """The weights after two steps, loading the first ones and one step more, without an evaluation before and with."""
    found = []
    with world():
        for evaluates in (False, True):
            executor, given = load(plan, capture=capture_of(plan)), list(batches(plan))
            first = executor.full_state_dict()
            for batch in given[:2]:
                executor.step(batch)
            if evaluates:
                executor.evaluate(given[0])
            executor.load_state_dict(first)
            executor.step(given[0])
            found.append(executor.full_state_dict())
    return found[0], found[1]


def refused_and_verified(plan: Plan) -> tuple[str, VerifyReport]:
    """What is said where an evaluation is asked for, and what `verify` says of the plan."""
    with world():
        executor = load(plan, capture=capture_of(plan))
        try:
            said = str(executor.evaluate(next(batches(plan))))
        except UsageError as error:
            said = str(error)
        return said, run_case(plan, 2)


def undrawn(plan: Plan) -> tuple[torch.Tensor, torch.Tensor]:
    """The state of torch's generator before and after an evaluation."""
    with world():
        executor = load(plan, capture=capture_of(plan))
        before = torch.get_rng_state()
        executor.evaluate(next(batches(plan)))
        return before, torch.get_rng_state()


def on_one_device(plan: Plan) -> Trained:
    """The same steps of the model itself, the whole batch at once."""
    model = prepared_model(plan, None, torch.device("cpu"))
    optimizer = optimizer_factory(plan.settings)(model.parameters())
    losses = []
    for batch in batches(plan):
        optimizer.zero_grad()
        loss = model(**batch)
        loss.backward()
        if plan.settings.clip_norm is not None:
            torch.nn.utils.clip_grad_norm_(model.parameters(), plan.settings.clip_norm)
        optimizer.step()
        losses.append(float(loss.detach()))
    state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    with torch.no_grad():
        return Trained(losses=tuple(losses), state=state, evaluated=float(model.eval()(**next(batches(plan)))))


def reached_on_one_device(
    plan: Plan, given: list[dict[str, torch.Tensor]]
) -> tuple[tuple[frozenset[str], ...], dict[str, torch.Tensor]]:
    """The same of the model itself, the whole batch at once."""
    model, found = prepared_model(plan, None, torch.device("cpu")), []
    optimizer = optimizer_factory(plan.settings)(model.parameters())
    for batch in given:
        optimizer.zero_grad()
        model(**batch).backward()
        every = model.named_parameters(remove_duplicate=False)
        found.append(frozenset(name for name, one in every if one.grad is not None))
        torch.nn.utils.clip_grad_norm_(model.parameters(), plan.settings.clip_norm or float("inf"))
        optimizer.step()
    return tuple(found), model.state_dict()


def evaluated(plan: Plan, state: dict[str, torch.Tensor]) -> float:
    """The loss of the model itself in evaluation, with `state`."""
    model = prepared_model(plan, None, torch.device("cpu")).eval()
    model.load_state_dict(state)
    with torch.no_grad():
        return float(model(**next(batches(plan))))


def batches(plan: Plan) -> Iterator[dict[str, torch.Tensor]]:
    """Random batches in the precision of the plan, the same in every process."""
    for step in range(STEPS):
        drawn = tracer.random_batch(plan.graph, plan.rows, step)
        yield {name: value.to(run_dtype(plan, value.dtype)) for name, value in drawn.items()}


def differences(found: Trained, expected: Trained, tolerance: float = 1e-9) -> list[str]:
    """What differs, by name."""
    pairs = {"loss": (torch.tensor(found.losses), torch.tensor(expected.losses))}
    pairs["evaluation"] = (torch.tensor(found.evaluated), torch.tensor(expected.evaluated))
    pairs |= {name: (found.state[name], tensor) for name, tensor in expected.state.items()}
    return [name for name, (one, other) in pairs.items() if not torch.allclose(one, other, rtol=0, atol=tolerance)]
