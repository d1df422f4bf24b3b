"""Parts give tensors of the same sizes for all numbers, and count nothing by plain values: what a graph has behind them
goes by the sizes it was captured with, and each device calls them as often as it has pieces."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from placer.errors import CaptureError, ExecutionError, UncapturableError
from placer.rules import OpaqueCost
from placer.tracer import capture, trace

pytestmark = pytest.mark.in_turns

ROWS, WIDTH = 6, 4
BATCH = {"x": ((ROWS, WIDTH), "float32"), "y": ((ROWS,), "int64")}


class Pairs(nn.Module):
    """As a miner does: the pairs of rows with unlike labels, none where all are alike."""

    def forward(self, h: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        first, second = torch.where(y[:, None] != y[None])
        return first, second


class Below(nn.Module):
    """The rows whose first number is below a limit."""

    def __init__(self, limit: float) -> None:
        super().__init__()
        self.limit = limit

    def forward(self, h: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        chosen = h[h[:, 0] < self.limit]
        return chosen, chosen


class Sized(nn.Module):
    """A loss that branches on how much a part gave, and divides by it."""

    def __init__(self, part: nn.Module) -> None:
        super().__init__()
        self.part, self.out = part, nn.Linear(WIDTH, 3)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        first, second = self.part(x, y)
        loss = nn.functional.cross_entropy(self.out(x), y)
        return loss + (first * second).sum() / len(first) if len(first) else loss


class Inside(nn.Module):
    """A part, what takes it and its sizes in one module, which gives tensors of one size."""

    def __init__(self) -> None:
        super().__init__()
        self.chosen, self.out = Below(0.0), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        chosen, _ = self.chosen(x, y)
        return x + self.out(chosen).sum(0) / len(chosen) if len(chosen) else x


class Whole(nn.Module):
    """A model around such a module."""

    def __init__(self) -> None:
        super().__init__()
        self.inside, self.out = Inside(), nn.Linear(WIDTH, 3)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return nn.functional.cross_entropy(self.out(self.inside(x, y)), y)


class Counting(nn.Module):
    """Does something else from its hundredth call on. where: how it counts."""

    of_class = 0

    def __init__(self, where: str) -> None:
        super().__init__()
        self.scale, self.where, self.own, self.log = nn.Parameter(torch.ones(WIDTH)), where, 0, list[float]()

    def forward(self, x: Tensor) -> Tensor:
        if self.where == "own":
            self.own += 1
        elif self.where == "of_class":
            Counting.of_class += 1
        elif self.where == "log":
            self.log.append(float(x.sum()))
        else:
            self.own = int((x > 0).sum())  # the same for the same numbers
        return x * self.scale * (2 if max(self.own, Counting.of_class, len(self.log)) > 100 else 1)


class Counted(nn.Module):
    def __init__(self, where: str) -> None:
        super().__init__()
        self.part, self.out = Counting(where), nn.Linear(WIDTH, 3)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return nn.functional.cross_entropy(self.out(self.part(x)), y)


@pytest.mark.parametrize("part", [Pairs(), Below(0.0), Below(0.5), Below(-0.5)])
def test_a_part_whose_sizes_hang_on_the_numbers_is_refused(part: nn.Module) -> None:
    with pytest.raises(CaptureError, match=r"part is opaque and gives tensors of other sizes by the numbers"):
        capture(Sized(part), batch=BATCH, opaque={"part": OpaqueCost()})


def test_sizes_that_no_trial_showed_stop_the_run() -> None:
    model = Sized(Below(100.0))
    graph = capture(model, batch=BATCH, opaque={"part": OpaqueCost()})
    module, x, y = trace(model, graph).module, torch.randn(ROWS, WIDTH), torch.zeros(ROWS, dtype=torch.int64)
    assert torch.equal(module(x, y)[0], model(x, y))
    x[0, 0] = 200.0
    with pytest.raises(ExecutionError, match=r"part is opaque and gave tensors of \(\(5, 4\), \(5, 4\)\)"):
        module(x, y)


def test_a_module_around_the_part_and_what_takes_it_is_opaque_in_its_place() -> None:
    torch.manual_seed(0)
    model = Whole()
    graph = capture(model, batch=BATCH)
    assert any(note.startswith("inside cannot be exported and is one opaque op") for note in graph.notes)
    module = trace(model, graph).module
    for shift in (0.0, 1.0, 9.0):
        x, y = torch.randn(ROWS, WIDTH) + shift, torch.randint(3, (ROWS,))
        assert torch.equal(module(x, y)[0], model(x, y))


@pytest.mark.parametrize(("where", "told"), [("own", "own"), ("of_class", "of_class"), ("log", "log")])
def test_a_part_that_counts_its_calls_in_plain_values_is_refused(where: str, told: str) -> None:
    with pytest.raises(UncapturableError, match=rf"part is opaque and changes .*{told}.*keep it in a buffer"):
        capture(Counted(where), batch=BATCH, opaque={"part": OpaqueCost(rows_apart=True)})


def test_what_a_part_notes_of_its_numbers_is_no_count() -> None:
    model = Counted("noted")
    graph = capture(model, batch=BATCH, opaque={"part": OpaqueCost(rows_apart=True)})
    x, y = torch.randn(ROWS, WIDTH), torch.randint(3, (ROWS,))
    assert torch.equal(trace(model, graph).module(x, y)[0], model(x, y))
