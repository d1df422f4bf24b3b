"""What a run does to tensors of its own accord is what the user's would be: optimizers on pieces, complex numbers."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import nullcontext
from dataclasses import replace

import pytest
import torch
from torch import nn

from examples.parity.cases import Case, plan_of
from execute_plans import tiny_plan
from placer.errors import UsageError
from placer.plans.plan import Plan
from placer.plans.settings import RunSettings
from placer.program.buckets import parameter_users
from placer.runtime import load
from placer.runtime.checkpoint.training_state import TrainingState
from placer.runtime.data_parallel.elementwise import require_elementwise
from placer.runtime.data_parallel.given_parameters import GivenParameters, OptimizerFactory
from placer.runtime.data_parallel.optimizer import Updater
from placer.runtime.weights.meta_model import meta_model

WHOLE = tiny_plan(2, 1)
SHARDED = tiny_plan(2, 1, sharding="parameters")
UPDATED_IN_PARTS = tiny_plan(2, 1, sharding="optimizer")


class LayerNormed(torch.optim.Optimizer):
    """Steps of the length of the tensor they move, as LAMB's and LARS's."""

    def __init__(self, parameters: object) -> None:
        super().__init__(parameters, {"lr": 0.1})  # type: ignore[arg-type]

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """One of them."""
        for group in self.param_groups:
            for one in group["params"]:
                one.add_(one.grad, alpha=-0.1 * float(one.norm() / one.grad.norm()))


ELEMENT_BY_ELEMENT: dict[str, OptimizerFactory] = {
    "sgd": lambda given: torch.optim.SGD(given, lr=0.1, momentum=0.9, nesterov=True),
    "adam": lambda given: torch.optim.AdamW(given, amsgrad=True),
    "rmsprop": lambda given: torch.optim.RMSprop(given, centered=True, momentum=0.5),
    "rprop": lambda given: torch.optim.Rprop(given),
    "adagrad": lambda given: torch.optim.Adagrad(given),
    "nadam": lambda given: torch.optim.NAdam(given),
}


@pytest.mark.parametrize("name", ELEMENT_BY_ELEMENT)
@pytest.mark.parametrize("plan", [WHOLE, SHARDED, UPDATED_IN_PARTS], ids=["whole", "sharded", "in parts"])
def test_what_moves_each_number_by_itself_goes_with_every_plan(name: str, plan: Plan) -> None:
    require_elementwise(plan, ELEMENT_BY_ELEMENT[name])


@pytest.mark.parametrize("make", [LayerNormed, torch.optim.Adafactor], ids=["norms", "adafactor"])
def test_what_looks_at_whole_tensors_is_refused_where_they_are_cut(make: Callable[..., torch.optim.Optimizer]) -> None:
    require_elementwise(WHOLE, make)
    for plan in (SHARDED, UPDATED_IN_PARTS):
        with pytest.raises(UsageError, match=r"moves the .* half of a tensor otherwise than the whole .* shard="):
            require_elementwise(plan, make)


class Clipping(torch.optim.SGD):
    """Clips by the norm of all that it is given."""

    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Clip, then step."""
        torch.nn.utils.clip_grad_norm_([one for group in self.param_groups for one in group["params"]], 0.1)
        super().step()


class Late(LayerNormed):
    """Plain for five steps."""

    done = 0

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """One of them."""
        self.done += 1
        if self.done > 5:
            super().step()


class ClippingFar(torch.optim.SGD):
    """Clips far above the norms of random gradients, as where losses are sums."""

    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Clip, then step."""
        nn.utils.clip_grad_norm_([one for group in self.param_groups for one in group["params"]], 1e5)
        super().step()


def by_size(given: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    """What has many numbers learns more slowly."""
    return torch.optim.SGD([{"params": [one], "lr": 0.1 / one.numel()} for one in given])


def by_order(given: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    """Later parameters learn faster, as layerwise rates have it."""
    return torch.optim.SGD([{"params": [one], "lr": 0.1 * (1 + at)} for at, one in enumerate(given)])


@pytest.mark.parametrize(
    "make", [Clipping, ClippingFar, Late, by_order, by_size, LayerNormed], ids=lambda make: str(make.__name__)
)
@pytest.mark.parametrize("plan", [tiny_plan(2, 2), SHARDED], ids=["stages", "sharded"])
def test_what_looks_at_other_parameters_is_refused_where_a_rank_has_some(make: OptimizerFactory, plan: Plan) -> None:
    alone = plan.stages[0].sharding == "none" and make in (Late, LayerNormed, by_size)
    refused = not alone and not (make is by_order and plan is SHARDED)
    why = "tells .* other settings where a rank has" if make in (by_order, by_size) else "moves"
    with pytest.raises(UsageError, match=why) if refused else nullcontext():
        require_elementwise(plan, make)


class Noisy(torch.optim.SGD):
    """Adds noise, as Langevin dynamics do."""

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """A step, and the noise."""
        super().step()
        for group in self.param_groups:
            for one in group["params"]:
                one.add_(torch.randn_like(one), alpha=0.1)


def test_what_draws_random_numbers_is_refused_on_many_ranks() -> None:
    require_elementwise(tiny_plan(1, 1), Noisy)
    with pytest.raises(UsageError, match=r"otherwise each time .* the 2 ranks of the plan would draw other"):
        require_elementwise(tiny_plan(2, 1), Noisy)


def test_a_factory_that_knows_its_own_parameters_only_is_taken_at_its_word() -> None:
    names = ["weight"] * 40

    def make(given: object) -> torch.optim.Optimizer:
        parameters = list(given)  # type: ignore[call-overload]
        return torch.optim.SGD([{"params": [parameters[at]], "lr": 0.1} for at in range(len(names))])

    require_elementwise(SHARDED, make)


def last_alone(given: GivenParameters) -> torch.optim.Optimizer:
    """Of the names that the last stage of the plan below has alone."""
    plan = tiny_plan(2, 2, model="untied")
    last = set(parameter_users(plan, 1))
    return torch.optim.SGD([one for name, one in given.named() if name in last], lr=0.1)


def last_or_other(given: GivenParameters) -> torch.optim.Optimizer:
    """Of those, or of a tensor that is none of the model's, for want of another."""
    plan = tiny_plan(2, 2, model="untied")
    last = set(parameter_users(plan, 1))
    mine = [one for name, one in given.named() if name in last]
    return torch.optim.SGD(mine or [nn.Parameter(torch.zeros(1))], lr=0.1)


def grouped(given: GivenParameters) -> torch.optim.Optimizer:
    """In two groups, of which a rank may have one alone."""
    return torch.optim.SGD([{"params": [p for p in given if (p.ndim > 1) == matrix]} for matrix in (True, False)])


def test_a_function_that_takes_nothing_of_what_a_rank_has_is_refused_before_the_run() -> None:
    with pytest.raises(UsageError, match=r"none of those that a rank has alone, as .*empty parameter list.*freeze"):
        require_elementwise(tiny_plan(2, 2, model="untied"), last_alone)
    with pytest.raises(UsageError, match="none of those its function was given"):
        require_elementwise(tiny_plan(2, 2, model="untied"), last_or_other)
    for plan in (tiny_plan(2, 1, model="untied"), tiny_plan(2, 1, model="untied", sharding="parameters")):
        require_elementwise(plan, last_alone)
    require_elementwise(tiny_plan(2, 2, model="untied"), grouped)


def test_an_optimizer_that_computes_the_loss_again_is_refused() -> None:
    with pytest.raises(UsageError, match=r"LBFGS wants to compute the loss again"):
        Updater({"weight": nn.Parameter(torch.ones(2))}, lambda given: torch.optim.LBFGS(given))


def by_name(given: GivenParameters) -> torch.optim.Optimizer:
    """No decay, and slower, for what is called a bias."""
    biases = [one for name, one in given.named() if name.endswith("bias")]
    others = [one for name, one in given.named() if not name.endswith("bias")]
    groups: list[dict[str, object]] = [{"params": biases, "weight_decay": 0.0, "lr": 0.01}, {"params": others}]
    return torch.optim.AdamW([group for group in groups if group["params"]], lr=0.1)


@pytest.mark.parametrize("plan", [WHOLE, SHARDED, tiny_plan(2, 2)], ids=["whole", "sharded", "stages"])
def test_groups_go_by_the_names_of_the_model(plan: Plan) -> None:
    require_elementwise(plan, by_name)
    updater = Updater({"a.weight": nn.Parameter(torch.ones(2)), "a.bias": nn.Parameter(torch.ones(1))}, by_name)
    assert updater.optimizer is not None
    assert [len(group["params"]) for group in updater.optimizer.param_groups] == [1, 1]
    assert updater.optimizer.param_groups[0]["params"][0] is updater.updated["a.bias"]


class Spectrum(nn.Module):
    """Complex weights of a signal's frequencies, and a complex buffer."""

    scale: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(5, dtype=torch.complex64))
        self.register_buffer("scale", torch.full((5,), 1 + 0.5j, dtype=torch.complex64))

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """The loss of what is filtered."""
        met = torch.fft.irfft(torch.fft.rfft(x) * self.weight * self.scale, n=8)
        return nn.functional.mse_loss(met, y)


@pytest.mark.parametrize(
    ("precision", "kept"), [("float32", torch.complex64), ("float64", torch.complex128), ("bfloat16", None)]
)
def test_complex_tensors_keep_their_imaginary_parts(precision: str, kept: torch.dtype | None) -> None:
    case = Case(model="test_elementwise:Spectrum", shapes=(("x", (8, 8)), ("y", (8, 8))))
    plan = replace(plan_of(case), settings=RunSettings(precision=precision))  # type: ignore[arg-type]
    model = Spectrum()
    given = {name: one.detach().clone() for name, one in (*model.named_parameters(), *model.named_buffers())}
    if kept is None:
        with pytest.raises(UsageError, match=r"the model's weight is complex, and torch has no complex type"):
            meta_model(plan, model, torch.device("cpu"))
        return
    found = meta_model(plan, model, torch.device("cpu")).model
    for name, one in (*found.named_parameters(), *found.named_buffers()):
        assert one.dtype == kept
        assert torch.equal(one.detach(), given[name].to(kept))


class Marked(nn.Module):
    """Has a parameter of an odd name, beside one of its first half."""

    def __init__(self) -> None:
        super().__init__()
        self.gains = nn.ParameterDict({"user": torch.ones(4), "user@item": torch.ones(4)})

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """The mean square of what the product is off."""
        return nn.functional.mse_loss(x * self.gains["user"] * self.gains["user@item"], y)


def test_what_an_optimizer_keeps_of_a_parameter_is_saved_whatever_its_name() -> None:
    executor = load(plan_of(Case(model="test_elementwise:Marked", shapes=(("x", (8, 4)), ("y", (8, 4))))))
    kept = TrainingState(executor).state_dict()["optimizer"]
    assert isinstance(kept, dict) and {"gains.user", "gains.user@item"} <= {*kept}
