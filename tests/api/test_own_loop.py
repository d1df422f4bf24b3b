"""What a training loop of one's own may give an executor, and what is refused before anything is lost."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

import pytest
import torch
from torch import nn

from examples.parity.cases import Case, plan_of
from examples.parity.models import TEXT
from placer import tracer
from placer.errors import UsageError
from placer.plans.plan import Plan
from placer.runtime import Executor, load
from placer.runtime.data_parallel.given_parameters import GivenParameters, OptimizerFactory

pytestmark = pytest.mark.in_turns

State = dict[str, torch.Tensor]


@pytest.fixture(scope="module")
def gpt2() -> Plan:
    return plan_of(Case(model="examples.models:tiny_gpt2", precision="float32", microbatches=(8,)))


@pytest.fixture(scope="module")
def running(gpt2: Plan) -> Executor:
    return load(gpt2)


def named(state: State) -> str:
    """The name of some matrix of a state."""
    return next(name for name, tensor in state.items() if tensor.dim() == 2)


WRONG: dict[str, tuple[Callable[[State], object], str]] = {
    "a row for a matrix": (lambda s: {**s, named(s): s[named(s)][:1]}, r"has shape \(1, \d+\), the model's has"),
    "a number for a matrix": (lambda s: {**s, named(s): torch.zeros(())}, r"has shape \(\), the model's has"),
    "too large": (lambda s: {**s, named(s): s[named(s)].repeat(2, 1)}, r"has shape .*, the model's has"),
    "another model's": (lambda s: {**s, "more.weight": torch.zeros(2)}, "has more.weight, which the model has not"),
    "arrays": (lambda s: {name: tensor.numpy() for name, tensor in s.items()}, "is a ndarray; give tensors"),
    "no dict": (lambda _: nn.Linear(2, 2), "the state is a Linear; give a dict of tensors"),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_state_of_another_model_is_refused_before_anything_is_taken(running: Executor, case: str) -> None:
    before = running.full_state_dict()
    spoil, message = WRONG[case]
    with pytest.raises(UsageError, match=message):
        running.load_state_dict(spoil({name: tensor + 1 for name, tensor in before.items()}))  # type: ignore[arg-type]
    after = running.full_state_dict()
    assert all(torch.equal(after[name], tensor) for name, tensor in before.items())


def test_a_state_may_be_of_another_type_and_name_tied_weights_twice(running: Executor) -> None:
    state = {name: (tensor + 1).double() for name, tensor in running.full_state_dict().items()}
    running.load_state_dict(state)
    assert all(torch.equal(one.double(), state[name]) for name, one in running.full_state_dict().items())


OPTIMIZERS: dict[str, tuple[object, str]] = {
    "an optimizer": (torch.optim.SGD(nn.Linear(2, 2).parameters()), "the optimizer is a SGD; give a function"),
    "none": (lambda _: None, "the optimizer's function gives a NoneType"),
    "of another model": (
        lambda _: torch.optim.SGD(nn.Linear(2, 3).parameters()),
        r"holds 2 tensors, the first of shape \(3, 2\), that are none of those its function was given",
    ),
}


@pytest.mark.parametrize("case", OPTIMIZERS)
def test_an_optimizer_that_would_move_nothing_is_refused(gpt2: Plan, case: str) -> None:
    make, message = OPTIMIZERS[case]
    with pytest.raises(UsageError, match=message):
        load(gpt2, optimizer=make)  # type: ignore[arg-type]


def test_an_optimizer_of_some_parameters_leaves_the_others(gpt2: Plan) -> None:
    make: OptimizerFactory = lambda given: torch.optim.SGD(list(given)[:1], lr=1.0)  # noqa: E731
    executor = load(gpt2, optimizer=make)
    before = executor.full_state_dict()
    executor.step(tracer.random_batch(gpt2.graph, gpt2.rows, 0))
    moved = [name for name, one in executor.full_state_dict().items() if not torch.equal(one, before[name])]
    assert moved and len({before[name].data_ptr() for name in moved}) <= len(moved) < len(before)


@pytest.mark.parametrize(
    "rate", [float("nan"), float("inf"), -1.0, "1e-3", None, True, 10**400, torch.ones(2), torch.tensor(1j)]
)
def test_what_is_no_learning_rate_is_refused(running: Executor, rate: object) -> None:
    with pytest.raises(UsageError, match=r"the learning rate is .*; give a finite number, 0 or more"):
        running.set_learning_rate(rate)  # type: ignore[arg-type]


TOGETHER: dict[str, Callable[[Executor, Plan], object]] = {
    "step": lambda one, plan: one.step(tracer.random_batch(plan.graph, plan.rows, 0)),
    "evaluate": lambda one, plan: one.evaluate(tracer.random_batch(plan.graph, plan.rows, 0)),
    "full_state_dict": lambda one, _: one.full_state_dict(),
    "load_state_dict": lambda one, _: one.load_state_dict({}),
}


@pytest.mark.parametrize("failing", ["step", "evaluate"])
def test_after_what_failed_on_its_way_ranks_do_nothing_together(gpt2: Plan, failing: str) -> None:
    """Those that failed and those that waited for them would take each other's messages for others."""
    executor = load(gpt2)
    batch = tracer.random_batch(gpt2.graph, gpt2.rows, 0)
    batch["input_ids"] = torch.full_like(batch["input_ids"], 10**6)
    with pytest.raises(IndexError):
        executor.step(batch) if failing == "step" else executor.evaluate(batch)
    for then in TOGETHER.values():
        with pytest.raises(UsageError, match="an earlier step or evaluation of this executor failed on its way"):
            then(executor, gpt2)


def test_after_a_wrong_batch_steps_go_on(running: Executor, gpt2: Plan) -> None:
    batch = tracer.random_batch(gpt2.graph, gpt2.rows, 0)
    for call in (running.step, running.evaluate):
        with pytest.raises(UsageError, match="the batch lacks"):
            call({})
    assert running.evaluate(batch) == pytest.approx(running.step(batch), rel=1e-6)


WITHOUT_GRADIENTS: dict[str, Callable[[], AbstractContextManager[object]]] = {
    "no_grad": torch.no_grad,
    "inference_mode": torch.inference_mode,
    "set_grad_enabled": lambda: torch.set_grad_enabled(False),
}


@pytest.mark.parametrize("mode", WITHOUT_GRADIENTS)
def test_what_would_train_nothing_is_refused(running: Executor, gpt2: Plan, mode: str) -> None:
    batch, before = tracer.random_batch(gpt2.graph, gpt2.rows, 0), running.full_state_dict()
    with WITHOUT_GRADIENTS[mode]():
        with pytest.raises(UsageError, match=r"step was called under torch\..*no weight would move; call it outside"):
            running.step(batch)
        evaluated = running.evaluate(batch)  # as evaluations are called
    assert all(torch.equal(one, before[name]) for name, one in running.full_state_dict().items())
    assert running.step(batch) == pytest.approx(evaluated, rel=1e-6)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast_around_a_run_that_does_not_cast_is_refused(running: Executor, gpt2: Plan, dtype: torch.dtype) -> None:
    """It would reach the backward alone, which no device does by itself."""
    batch = tracer.random_batch(gpt2.graph, gpt2.rows, 0)
    with torch.autocast("cpu", dtype):
        for call in (running.step, running.evaluate):
            with pytest.raises(UsageError, match=r"under torch.autocast of b?float16, and the plan's precision is"):
                call(batch)
        with torch.autocast("cpu", enabled=False):
            running.step(batch)


def test_autocast_around_a_run_that_casts_changes_no_number() -> None:
    """Nor does one that is off: in either torch would keep cast weights over several steps."""
    plan = plan_of(Case(model="examples.models:tiny_gpt2", precision="bfloat16-autocast", microbatches=(4, 4)))
    states: list[State] = []
    for around in (nullcontext(), torch.autocast("cpu", torch.bfloat16), torch.autocast("cpu", enabled=False)):
        executor = load(plan)
        with around:
            for seed in range(3):
                executor.step(tracer.random_batch(plan.graph, plan.rows, seed))
        states.append(executor.full_state_dict())
    alone, *others = states
    assert all(torch.equal(one, other[name]) for other in others for name, one in alone.items())


def test_a_path_is_no_plan() -> None:
    with pytest.raises(UsageError, match=r"the plan is a str; give a Plan, as Plan.load\(path\) reads it"):
        load("plan.json")  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def shared() -> Plan:
    """Two stages of one rank, each with a copy of the tied table."""
    return plan_of(
        Case(model="examples.parity.models:words", shapes=TEXT, positions=1, turns=2, schedule="interleaved")
    )


def by_whole_names(given: GivenParameters) -> torch.optim.Optimizer:
    """A rate of its own for what has one of these names."""
    rates = {"table.weight": 0.3, "layers.0.0.weight": 0.2}
    return torch.optim.SGD([{"params": [one], "lr": rates.get(name, 0.1)} for name, one in given.named()])


def test_an_optimizer_that_goes_by_names_moves_both_copies_of_a_tied_parameter_alike(shared: Plan) -> None:
    executor = load(shared, optimizer=by_whole_names)
    for step in range(2):
        executor.step(tracer.random_batch(shared.graph, shared.rows, step))
    copies = [stage.own_parameters()["table.weight"] for stage in executor.stages.values()]
    assert len(copies) == 2 and torch.equal(*copies)


def test_an_optimizer_of_one_copy_of_a_tied_parameter_is_refused(shared: Plan) -> None:
    make: OptimizerFactory = lambda given: torch.optim.SGD(list(dict(given.named()).values()), lr=0.1)  # noqa: E731
    with pytest.raises(UsageError, match=r"holds table.weight as one stage of a rank has it, and not as another one"):
        load(shared, optimizer=make)


def two_steps(executor: Executor, plan: Plan) -> State:
    """The weights after two steps."""
    for step in range(2):
        executor.step(tracer.random_batch(plan.graph, plan.rows, step))
    return executor.full_state_dict()


@pytest.mark.parametrize("name", WITHOUT_GRADIENTS)
def test_all_but_a_step_may_be_done_without_gradients(gpt2: Plan, name: str) -> None:
    """Planning, loading, evaluating and the state, whose tensors serve the steps that follow."""
    batch = tracer.random_batch(gpt2.graph, gpt2.rows, 0)
    with WITHOUT_GRADIENTS[name]():
        executor = load(gpt2)
        executor.evaluate(batch)
        executor.load_state_dict(executor.full_state_dict())
        graph = tracer.capture("examples.models:tiny_gpt2", batch=batch)
    assert graph == tracer.capture("examples.models:tiny_gpt2", batch=batch)
    plain = two_steps(load(gpt2), gpt2)
    assert all(torch.equal(one, plain[name]) for name, one in two_steps(executor, gpt2).items())


def test_a_model_made_in_inference_mode_is_refused(gpt2: Plan) -> None:
    """In eager its first step ends in torch's error; loading it ended in one of ours."""
    with torch.inference_mode():
        model = tracer.resolve("examples.models:tiny_gpt2").build("cpu")
    with pytest.raises(UsageError, match=r"was made in torch.inference_mode.*outside of it"):
        load(gpt2, model)


def test_a_batch_made_in_inference_mode_trains(gpt2: Plan) -> None:
    """Torch keeps no such tensor for a backward; pipelines hung as one rank ended in its error."""
    with torch.inference_mode():
        batch = tracer.random_batch(gpt2.graph, gpt2.rows, 0)
    assert batch["input_ids"].is_inference()
    plain = {name: one.clone() for name, one in batch.items()}
    assert load(gpt2).step(batch) == load(gpt2).step(plain)


def test_where_a_caller_has_torch_make_its_tensors_moves_nothing_of_a_step(gpt2: Plan) -> None:
    batch = tracer.random_batch(gpt2.graph, gpt2.rows, 0)
    executor = load(gpt2)
    with torch.device("meta"):
        loss = executor.step(batch)
    assert loss == load(gpt2).step(batch)
