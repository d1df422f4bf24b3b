"""What a step leaves for the next one, or does to torch's generator, is refused where an export would not show it."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from placer.errors import UncapturableError
from placer.tracer import capture

Keeps = Callable[["Keeping", Tensor], Tensor]


def before_last(model: Keeping, h: Tensor) -> Tensor:
    found = h if model.kept is None else h + 0.5 * model.kept
    model.kept = h.detach()
    return found


def in_a_dict(model: Keeping, h: Tensor) -> Tensor:
    found = h if "h" not in model.held else h + model.held["h"]
    model.held["h"] = h.detach()
    return found


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

    def __init__(self, keeps: Keeps) -> None:
        super().__init__()
        self.layer, self.keeps, self.count = nn.Linear(4, 4), keeps, counter()
        self.kept: Tensor | None = None
        self.held: dict[str, Tensor] = {}

    def forward(self, x: Tensor) -> Tensor:
        return functional.gelu(self.keeps(self, self.layer(x))).mean()


REFUSED: dict[Keeps, str] = {
    before_last: "reads and replaces the tensor kept",
    in_a_dict: r"reads and replaces the tensor held\['h'\]",
    first_weights: "a step after the first reads what an earlier one has left in place of aten::clone",
    first_teacher: "forward makes the module teacher",
    counted_in_a_closure: "counts in count, its calls",
    seeded: "forward calls manual_seed",
    seeded_apart: "forward calls fork_rng",
    drawn_twice: "forward calls get_rng_state",
    truncated: "draws by trunc_normal_",
}


@pytest.mark.parametrize(("keeps", "why"), REFUSED.items(), ids=lambda one: getattr(one, "__name__", ""))
def test_what_an_export_of_the_first_step_would_not_show_is_refused(keeps: Keeps, why: str) -> None:
    with pytest.raises(UncapturableError, match=why):
        capture(Keeping(keeps), batch={"x": (6, 4)})


@pytest.mark.parametrize("keeps", [positions, mask])
def test_what_is_kept_of_sizes_and_constants_is_the_same_in_every_step(keeps: Keeps) -> None:
    assert capture(Keeping(keeps), batch={"x": (6, 4)}).rows == 6
