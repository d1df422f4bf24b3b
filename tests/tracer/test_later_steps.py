"""What a step leaves for the next one, or does to torch's generator, is refused where an export would not show it."""

from __future__ import annotations

import copy
from collections import OrderedDict
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from placer.errors import UncapturableError
from placer.tracer import capture

pytestmark = pytest.mark.in_turns

Keeps = Callable[["Keeping", Tensor], Tensor]


def before_last(model: Keeping, h: Tensor) -> Tensor:
    found = h if model.kept is None else h + 0.5 * model.kept
    model.kept = h.detach()
    return found


def in_a_dict(model: Keeping, h: Tensor) -> Tensor:
    found = h if "h" not in model.held else h + model.held["h"]
    model.held["h"] = h.detach()
    return found


def held_in(make: Callable[[Tensor], Any], read: Callable[[Any], Tensor]) -> Keeps:
    """Kept in something that each step makes anew."""

    def keeps(model: Keeping, h: Tensor) -> Tensor:
        held = getattr(model, "made", None)
        model.made = make(h.detach().mean(0))
        return h if held is None else h + 0.5 * read(held)

    return keeps


def set_in_a_list(model: Keeping, h: Tensor) -> Tensor:
    held, model.slots[1] = model.slots[1], h.detach().mean(0)
    return h if held is None else h + held


def set_in_a_list_of_dicts(model: Keeping, h: Tensor) -> Tensor:
    held, model.cells[0]["mean"] = model.cells[0].get("mean"), h.detach().mean(0)
    return h if held is None else h + held


def set_in_what_others_have(model: Keeping, h: Tensor) -> Tensor:
    held, model.tables["of"]["mean"] = model.inner.get("mean"), h.detach().mean(0)
    return h if held is None else h + held


def asked_whether_there_is_any(model: Keeping, h: Tensor) -> Tensor:
    found = h + 1 if model.made else h
    model.made = {"mean": h.detach().mean(0)}
    return found


def in_a_helper(model: Keeping, h: Tensor) -> Tensor:
    held, model.helper.mean = model.helper.mean, h.detach().mean(0)
    return h if held is None else h + held


def in_a_class(model: Keeping, h: Tensor) -> Tensor:
    held, type(model).shared = type(model).shared, h.detach().mean(0)
    return h if held is None else h + held


def first_weights(model: Keeping, h: Tensor) -> Tensor:
    if model.kept is None:
        model.kept = model.layer.weight.detach().clone()
    return h + (model.layer.weight - model.kept).square().sum()


def first_teacher(model: Keeping, h: Tensor) -> Tensor:
    if not hasattr(model, "teacher"):
        object.__setattr__(model, "teacher", copy.deepcopy(model.layer).requires_grad_(False))
    found: Tensor = model.teacher(h)
    return h + found


def counted_in_a_closure(model: Keeping, h: Tensor) -> Tensor:
    return h * 3 if model.count() > 10 else h


def seeded(model: Keeping, h: Tensor) -> Tensor:
    torch.manual_seed(0)
    return h + torch.randn(4)


def seeded_apart(model: Keeping, h: Tensor) -> Tensor:
    with torch.random.fork_rng():
        return h + torch.randn(4)


def drawn_twice(model: Keeping, h: Tensor) -> Tensor:
    state = torch.get_rng_state()
    first = torch.randn_like(h)
    torch.set_rng_state(state)
    return h + first - torch.randn_like(h)


def truncated(model: Keeping, h: Tensor) -> Tensor:
    return h + nn.init.trunc_normal_(torch.zeros_like(h))


def positions(model: Keeping, h: Tensor) -> Tensor:
    if model.kept is None:
        model.kept = torch.arange(4, device=h.device) / 4
    return h + model.kept


def mask(model: Keeping, h: Tensor) -> Tensor:
    if "mask" not in model.held:
        model.held["mask"] = torch.ones_like(h[0]).tril() if h.dim() > 2 else torch.ones(4, device=h.device)
    return h * model.held["mask"]


def cut_to_the_width(model: Keeping, h: Tensor) -> Tensor:
    """All of what is kept, as the first step makes as much as it takes."""
    width = h.shape[1]
    if model.kept is not None and model.kept.shape[0] >= width:
        return h * model.kept[-width:]
    model.kept = torch.arange(width, device=h.device).cos()
    return h * model.kept


def cut_off(model: Keeping, h: Tensor) -> Tensor:
    """The first step takes the beginning of what it keeps, those after it the end."""
    if model.kept is not None:
        return h * model.kept[-4:]
    model.kept = torch.arange(8, device=h.device).cos()
    return h * model.kept[:4]


def counter() -> Callable[[], int]:
    calls = 0

    def count() -> int:
        nonlocal calls
        calls += 1
        return calls

    return count


class Keeping(nn.Module):
    """A layer, and what is done to its features."""

    teacher: nn.Module
    shared: Tensor | None = None

    def __init__(self, keeps: Keeps) -> None:
        super().__init__()
        self.layer, self.keeps, self.count = nn.Linear(4, 4), keeps, counter()
        self.kept: Tensor | None = None
        self.held: dict[str, Tensor] = {}
        self.made: Any = None
        self.calls = 0
        self.helper = SimpleNamespace(mean=None)
        self.cells: list[dict[str, Tensor]] = [{}]
        self.inner: dict[str, Tensor] = {}
        self.tables = {"of": self.inner}
        self.slots: list[Tensor | None] = [None, None]

    def forward(self, x: Tensor) -> Tensor:
        return functional.gelu(self.keeps(self, self.layer(x))).mean()


def drawn(model: Keeping, h: Tensor) -> Tensor:
    """A mask that is drawn once for a length."""
    if model.kept is None:
        model.kept = torch.rand(h.shape[1], device=h.device) > 0.5
    return h * model.kept


def before_the_last(model: Keeping, h: Tensor) -> Tensor:
    """What the second step leaves is read by the third."""
    found = h if model.made is None else h + model.made
    model.made, model.kept = model.kept, h.detach().mean(0)
    return found


def built_in_two_steps(model: Keeping, h: Tensor) -> Tensor:
    if model.kept is None:
        model.kept = torch.arange(4, device=h.device)
    elif model.made is None:
        model.made = torch.ones(4, device=h.device)
    else:
        h = h * model.made * 2
    return h


def counted_once_there_is_a_table(model: Keeping, h: Tensor) -> Tensor:
    """The number of the second step is that of the first, that of the third another."""
    if model.kept is None:
        model.kept = torch.ones(4, device=h.device)
    else:
        model.calls += 1
    return h * model.kept * max(1, model.calls)


REFUSED: dict[Keeps, str] = {
    drawn: "a step after the first reads what an earlier one has left",
    before_last: "reads and replaces the tensor kept",
    in_a_dict: r"reads and replaces the tensor held\['h'\]",
    first_weights: "a step after the first reads what an earlier one has left in place of aten::clone",
    first_teacher: "forward makes the module teacher",
    set_in_a_list: r"reads and replaces the tensor slots\[1\]",
    set_in_a_list_of_dicts: "reads a tensor that an earlier step has kept",
    set_in_what_others_have: r"reads and replaces the tensor inner\['mean'\]",
    asked_whether_there_is_any: "a step after the first computes",
    in_a_helper: "reads a tensor that an earlier step has kept",
    in_a_class: "reads a tensor that an earlier step has kept",
    counted_in_a_closure: "counts in count, its calls",
    seeded: "forward calls manual_seed",
    seeded_apart: "forward calls fork_rng",
    drawn_twice: "forward calls get_rng_state",
    truncated: "draws by trunc_normal_",
    before_the_last: "reads and replaces the tensor made",
    cut_off: "a step after the first computes",
    built_in_two_steps: "a step after the first computes",
    counted_once_there_is_a_table: "counts in calls",
}


@pytest.mark.parametrize(("keeps", "why"), REFUSED.items(), ids=lambda one: getattr(one, "__name__", ""))
def test_what_an_export_of_the_first_step_would_not_show_is_refused(keeps: Keeps, why: str) -> None:
    with pytest.raises(UncapturableError, match=why):
        capture(Keeping(keeps), batch={"x": (6, 4)})


@pytest.mark.parametrize(
    ("make", "read"),
    [
        (lambda mean: {"mean": mean}, lambda held: held["mean"]),
        (lambda mean: OrderedDict(mean=mean), lambda held: held["mean"]),
        (lambda mean: [mean], lambda held: held[0]),
        (lambda mean: (mean, "mean"), lambda held: held[0]),
        (lambda mean: {mean}, lambda held: next(iter(held))),
        (lambda mean: SimpleNamespace(mean=mean), lambda held: held.mean),
        (lambda mean: {"of": [mean]}, lambda held: held["of"][0]),
    ],
    ids=["dict", "ordered", "list", "tuple", "set", "object", "nested"],
)
def test_what_each_step_keeps_for_the_next_in_something_new_is_refused(
    make: Callable[[Tensor], Any], read: Callable[[Any], Tensor]
) -> None:
    with pytest.raises(UncapturableError, match=r"replaces the tensor made|has kept in a list|counts in made"):
        capture(Keeping(held_in(make, read)), batch={"x": (6, 4)})


@pytest.mark.parametrize(
    "make", [lambda mean: {"mean": mean}, lambda mean: [mean], lambda mean: SimpleNamespace(m=mean)]
)
def test_what_each_step_keeps_and_nobody_reads_is_let_be(make: Callable[[Tensor], Any]) -> None:
    def keeps(model: Keeping, h: Tensor) -> Tensor:
        model.made = make(h.detach().mean(0))
        return h

    assert capture(Keeping(keeps), batch={"x": (6, 4)}).rows == 6


def table(model: Keeping, h: Tensor) -> Tensor:
    if model.made is None:
        model.made = (torch.arange(4, device=h.device), SimpleNamespace(scale=torch.ones(4, device=h.device)))
    steps, scaled = model.made
    return h + torch.mul(steps, scaled.scale)


@pytest.mark.parametrize("keeps", [positions, mask, table, cut_to_the_width])
def test_what_is_kept_of_sizes_and_constants_is_the_same_in_every_step(keeps: Keeps) -> None:
    assert capture(Keeping(keeps), batch={"x": (6, 4)}).rows == 6
