"""Inputs as a batch describes them: shapes by name, one number without dims, and those that are the same in every step,
whose values a capture knows, and no others."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from execute_models import CONSTANTS, GRID, GRID_ROWS, GRID_WIDTH, MODELS, GridLayers, OneGrid, batch_of, described
from placer import tracer
from placer.errors import CaptureError, UncapturableError, UsageError
from placer.rules.rows import whole_batch_reason
from placer.runtime.data import open_data
from placer.tracer.inputs.batches import Batch, normalised
from placer.tracer.inputs.constants import MOST, Constant
from placer.tracer.inputs.named_shapes import named_shapes


@pytest.mark.in_turns
@pytest.mark.parametrize("made", CONSTANTS)
def test_what_is_read_of_constants_is_in_the_graph(made: str) -> None:
    model, batch = MODELS[made]().double(), batch_of(made, 0)
    traced = tracer.trace(model, tracer.capture(model, batch=described(made), precision="float64"))
    (found,) = traced.module(*(batch[name] for name in traced.input_names))
    torch.testing.assert_close(found, model(**batch), rtol=0, atol=1e-12)


@pytest.mark.in_turns
def test_the_same_input_is_refused_where_nobody_says_that_it_is_constant() -> None:
    with pytest.raises(UncapturableError, match="Constant"):
        tracer.capture(
            OneGrid(), batch={"x": (GRID_ROWS, GRID_WIDTH), "y": (GRID_ROWS, GRID_WIDTH), "grid": torch.tensor(GRID)}
        )


def test_a_batch_is_divided_where_rows_of_constants_are_alike_alone() -> None:
    assert not whole_batch_reason(tracer.capture(OneGrid(), batch=described("one_grid")), statistics=True)
    why = whole_batch_reason(tracer.capture(MODELS["packed"](), batch=described("packed")),
                             statistics=True)  # fmt: skip
    assert "the constant lengths, whose rows are not alike, would be another" in why


class Reads(GridLayers):
    """Reads a number that `made` makes of a constant."""

    def forward(self, x: Tensor, grid: Tensor) -> Tensor:
        loss: Tensor = self.computed(x).mean() * int(self.made(grid, x))
        return loss

    def made(self, grid: Tensor, x: Tensor) -> Tensor:
        """The number."""
        raise NotImplementedError


class Writes(Reads):
    def made(self, grid: Tensor, x: Tensor) -> Tensor:
        ends = grid.cumsum(0)
        ends[1:] += ends[:1]
        ends[0] = 3
        return ends.sum()


class WritesThroughAView(Reads):
    def made(self, grid: Tensor, x: Tensor) -> Tensor:
        ends = grid.clone()
        ends[1:].copy_(x[0, :2].long())
        return ends.sum()


class WritesThroughData(Reads):
    def made(self, grid: Tensor, x: Tensor) -> Tensor:
        ends = grid.clone()
        ends.data[:] = x[0, :3].long()
        return ends.sum()


class Draws(Reads):
    def made(self, grid: Tensor, x: Tensor) -> Tensor:
        return torch.rand_like(grid.double()).sum() + grid.sum()


def test_what_is_written_of_constants_into_what_was_made_of_them_is_known() -> None:
    model = Writes().double()
    batch = {"x": torch.randn(GRID_ROWS, GRID_WIDTH, dtype=torch.float64), "grid": torch.tensor(GRID)}
    traced = tracer.trace(model, {"x": batch["x"], "grid": Constant(batch["grid"])})
    assert torch.equal(traced.module(*(batch[name] for name in traced.input_names))[0], model(**batch))


@pytest.mark.in_turns
@pytest.mark.parametrize("made", [WritesThroughAView, WritesThroughData])
def test_what_is_made_of_other_values_is_not_known(made: type[nn.Module]) -> None:
    """The graph computes it, of the values of each step."""
    model = made().double()
    for _ in range(2):
        batch = {"x": 3 * torch.randn(GRID_ROWS, GRID_WIDTH, dtype=torch.float64), "grid": torch.tensor(GRID)}
        shapes = {"x": torch.zeros_like(batch["x"]), "grid": Constant(batch["grid"])}
        traced = tracer.trace(model, shapes)
        assert torch.equal(traced.module(*(batch[name] for name in traced.input_names))[0], model(**batch))


def test_what_is_drawn_is_not_known() -> None:
    graph = tracer.capture(Draws(), batch={"x": (GRID_ROWS, GRID_WIDTH), "grid": Constant(GRID)})
    assert any("rand" in op.target for _, op in graph.ops)


def batch(text: str) -> Batch:
    return normalised(OneGrid(), text, own_loss=True)


def test_a_constant_is_written_by_its_numbers() -> None:
    shapes = named_shapes("x=8x16,grid=[[1, 4],[2,4]]:int32,y=8")
    assert isinstance(shapes["grid"], Constant)
    assert torch.equal(shapes["grid"].tensor("grid"), torch.tensor([[1, 4], [2, 4]], dtype=torch.int32))
    assert (shapes["x"], shapes["y"]) == ((8, 16), (8,))
    assert batch("grid=[1,4,4],x=8x16,y=8x16").rows == GRID_ROWS


@pytest.mark.parametrize("text", ["[1,", "[1,[2]]", "[x]", "[1,4]:int33", "[1,4]:", "[NaN]"])
def test_what_are_no_numbers_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="grid"):
        batch(f"x=8x16,y=8x16,grid={text}")


@pytest.mark.parametrize("values", [None, "sum", torch.zeros(3, device="meta"), [0] * (MOST + 1), [float("inf")]])
def test_a_constant_that_no_plan_holds_is_refused(values: object) -> None:
    with pytest.raises(UsageError, match="the constant grid of the batch"):
        Constant(values).tensor("grid")


def test_data_need_not_hold_constants(tmp_path: Path) -> None:
    graph = tracer.capture(OneGrid(), batch=described("one_grid"))
    torch.save({name: torch.randn(3 * GRID_ROWS, GRID_WIDTH) for name in ("x", "y")}, tmp_path / "rows.pt")
    data = open_data(str(tmp_path), graph, rows=GRID_ROWS, seed=0)
    assert all(given(0)["grid"].tolist() == GRID for given in (data.batch, data.held_out))


class Weighted(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 6)

    def forward(self, x: Tensor, share: Tensor) -> Tensor:
        made: Tensor = share * self.layer(x).pow(2).mean()
        return made


def test_one_number_of_the_batch_is_written_by_its_type_alone() -> None:
    shapes = named_shapes("x=8x6,share=:float32")
    assert shapes == {"x": (8, 6), "share": ((), "float32")}
    model = Weighted()
    traced = tracer.trace(model, tracer.capture(model, batch=shapes))
    x, share = torch.randn(8, 6), torch.tensor(0.25)
    assert torch.equal(traced.module(x, share)[0], model(x, share))


@pytest.mark.parametrize("text", ["x=8x6,share=", "x=8x6,share=:", "x=8x6,share=0", "x=8x,share=:float32"])
def test_what_is_no_shape_is_told_how_one_number_is_written(text: str) -> None:
    with pytest.raises(UsageError, match="weight=:float32"):
        named_shapes(text)


@pytest.mark.in_turns
@pytest.mark.parametrize("text", ["grid=[1.5,4]:int32", "grid=[300,4]:uint8", "grid=[-4]:uint8"])
def test_numbers_that_a_type_does_not_have_are_refused(text: str) -> None:
    with pytest.raises(UsageError, match="numbers that are none of"):
        named_shapes(text)


class _Writes(nn.Module):
    """Writes into what is made of a constant, then reads it."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.layer, self.how = nn.Linear(4, 4), how

    def forward(self, x: Tensor, grid: Tensor) -> Tensor:
        made = (grid - 2).double().view(1, 3)
        if self.how == "relu":
            functional.relu(made, inplace=True)
        elif self.how == "transposed":
            made.T[0] = 7
        elif self.how == "op":
            torch.ops.aten.add_.Tensor(made, made)
        else:
            places = (grid.view(1, 3) > 1).nonzero()
            places.reshape(-1).add_(1)
            made = places
        loss: Tensor = self.layer(x).mean() * int(made.sum())
        return loss


@pytest.mark.in_turns
@pytest.mark.parametrize("how", ["relu", "transposed", "op", "nonzero"])
def test_what_a_call_that_is_not_followed_writes_is_not_known(how: str) -> None:
    """The graph computes it."""
    model, batch = _Writes(how), {"x": torch.randn(4, 4), "grid": torch.tensor([1, 4, 4])}
    traced = tracer.trace(model, {"x": batch["x"], "grid": Constant(batch["grid"])})
    assert torch.equal(traced.module(*(batch[name] for name in traced.input_names))[0], model(**batch))


class Mapped(nn.Module):
    """Maps a function over what it takes."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: Tensor, grid: Tensor) -> Tensor:
        """A number."""
        loss: Tensor = self.layer(x).mean() * torch.vmap(lambda one: one * 2 + 1)(grid).sum()
        return loss


def test_a_function_mapped_over_a_constant_is_refused_for_what_it_is() -> None:
    with pytest.raises(CaptureError, match=r"called by torch\.vmap"):
        tracer.capture(Mapped(), batch={"x": (4, 4), "grid": Constant([1, 4, 4])})


class Axes(nn.Module):
    """Takes the axes of a sum from a tensor of numbers, as MONAI's losses do."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        axes: list[int] = torch.arange(1, x.dim()).tolist()
        loss: Tensor = (self.layer(x) - y).square().sum(axes).mean()
        return loss


def test_what_is_read_of_plain_numbers_is_in_the_graph_and_the_batch_is_divided() -> None:
    model, batch = Axes().double(), {name: torch.randn(4, 3, 4, dtype=torch.float64) for name in "xy"}
    graph = tracer.capture(model, batch=batch)
    assert not whole_batch_reason(graph, statistics=True)
    traced = tracer.trace(model, graph)
    torch.testing.assert_close(traced.module(*batch.values())[0], model(**batch), rtol=0, atol=1e-12)


class AxisOfValues(Axes):
    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return super().forward(x, y.cumsum(int(x.argmax())))


def test_what_is_read_of_a_batch_beside_plain_numbers_is_refused() -> None:
    with pytest.raises(UncapturableError, match="Constant"):
        tracer.capture(AxisOfValues(), batch={"x": (4, 3, 4), "y": (4, 3, 4)})
