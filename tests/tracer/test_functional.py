"""Writes in place at capture: what is captured computes what the model computes, loss and gradients, and writes
nothing; what cannot be so is refused with its line."""

from __future__ import annotations

import copy
import gc
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, fx, nn
from torch.nn import functional

from placer import tracer
from placer.errors import CaptureError
from placer.rules import call_of
from placer.rules.registry import split_choices
from writing_models import OUT, WIDTH, WRITES, Averaging, Codebook, Counting, CountingRows, Spectral, Stateful, Writer

pytestmark = pytest.mark.in_turns

SHAPES = {"x": (8, WIDTH), "y": (8, OUT)}
CHAINS = {
    "whole_chain": ["aten.mul_.Tensor", "aten.add_.Tensor", "aten.relu_.default"],
    "indexed": ["aten.index_put_.default"] * 2,
}


def batch(rows: int) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(rows)
    return {
        name: torch.randn(rows, width, generator=generator, dtype=torch.float64) for name, (_, width) in SHAPES.items()
    }


def gradients(model: nn.Module, loss: Tensor) -> dict[str, Tensor | None]:
    model.zero_grad()
    torch.autograd.backward(loss)
    return {name: parameter.grad for name, parameter in model.named_parameters()}


def same(model: nn.Module, traced: tracer.Traced, rows: int) -> None:
    """The captured graph gives at so many rows the loss and the gradients of the model, and leaves the batch alone."""
    given = batch(rows)
    before = copy.deepcopy(given)
    found = traced.module(*given.values())[0]
    assert all(torch.equal(given[name], before[name]) for name in given)
    ours = gradients(model, found)
    expected = model(**given)
    for name, gradient in gradients(model, expected).items():
        one = ours[name]
        assert (one is None) == (gradient is None), name
        assert one is None or gradient is None or torch.allclose(one, gradient, rtol=0, atol=1e-12), name
    assert torch.allclose(found, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", WRITES)
def test_what_writes_through_a_view_computes_what_the_model_computes(name: str) -> None:
    torch.manual_seed(0)
    model = Writer(name).double()
    traced = tracer.trace(model, SHAPES)
    for rows in (8, 5):
        same(model, traced, rows)
    # A chain that writes a whole value computes one already.
    assert [str(node.target) for node in writes(traced)] == CHAINS.get(name, [])


class Joins(nn.Module):
    """Rows taken apart and joined again in a new tensor, which is written to beside what they were taken from."""

    def __init__(self, dim: int, order: int = 1) -> None:
        super().__init__()
        self.one, self.dim, self.order = nn.Linear(8, 8), dim, order

    def forward(self, x: Tensor) -> Tensor:
        tokens = self.one(x).unflatten(1, (2, 2, 2))
        joined = torch.cat(tokens.unbind(self.dim)[:: self.order], self.dim)
        joined.mul_(2)
        return (tokens.sum() + joined.flatten().cumsum(0).sum()) / x.shape[0]  # type: ignore[no-any-return]


@pytest.mark.parametrize(("dim", "order"), [(0, 1), (1, 1), (-3, 1), (1, -1)])
def test_what_is_taken_apart_and_joined_again_is_as_many_as_there_are(dim: int, order: int) -> None:
    model = Joins(dim, order).double()
    traced = tracer.trace(model, {"x": ((8, 8), "float64")})
    for rows in (8, 5):
        given = torch.randn(rows, 8, dtype=torch.float64)
        found = torch.autograd.grad(traced.module(given)[0], [*traced.module.parameters()])
        assert all(map(torch.equal, found, torch.autograd.grad(model(given), [*model.parameters()])))


def test_rows_that_are_joined_in_another_order_stay_whole() -> None:
    loss = tracer.capture(Joins(0, -1), batch={"x": (8, 8)}).loss
    assert loss.reduction == "other" and "of 8 rows alone" in loss.why


def writes(traced: tracer.Traced) -> list[fx.Node]:
    """Those that write; `detach_` only tells autograd."""
    nodes = (node for node in traced.module.graph.nodes if isinstance(node.target, torch._ops.OpOverload))
    return [node for node in nodes if node.target._schema.is_mutable and node.target.name() != "aten::detach_"]


class WritesThroughDropout(Writer):
    """Dropout of nothing gives what it was given, and not a copy of it."""

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        h = self.one(x)
        functional.dropout(h, 0.0, training=True)[x > 0] = 0
        return functional.mse_loss(self.two(h), y)


def test_what_is_written_behind_dropout_of_nothing_is_written_before_it() -> None:
    model = WritesThroughDropout("").double()
    same(model, tracer.trace(model, SHAPES), 5)


class WritesInput(Writer):
    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        x[:, :2] = 0
        y.mul_(2)
        return functional.mse_loss(self.two(self.one(x)), y)


def test_the_batch_stays_as_it_was() -> None:
    traced, given = tracer.trace(WritesInput("").double(), SHAPES), batch(6)
    before = copy.deepcopy(given)
    traced.module(*given.values())
    assert all(torch.equal(given[name], before[name]) for name in given)


@pytest.mark.parametrize("kind", [Counting, Spectral, Averaging, Codebook])
def test_a_buffer_is_written_once_and_read_as_it_was_found(kind: type) -> None:
    torch.manual_seed(0)
    model = Stateful(kind, kind).double()
    traced, other = tracer.trace(model, SHAPES), copy.deepcopy(model)
    targets = [str(node.args[0]) for node in writes(traced)]
    assert targets and len(targets) == len(set(targets))
    for rows in (8, 8):
        given = batch(rows)
        assert torch.allclose(traced.module(*given.values())[0], other(**given), rtol=0, atol=1e-12)
    for name, buffer in other.named_buffers():
        assert torch.allclose(model.get_buffer(name), buffer, rtol=0, atol=1e-12), name


@pytest.mark.parametrize(
    ("kind", "why"),
    [
        (Counting, ""),
        (Spectral, ""),
        (Averaging, "layers.0.mean is written"),
        (Codebook, "layers.0.book is written"),
        (CountingRows, "layers.0.seen is written"),
    ],
)
def test_the_batch_may_be_divided_unless_a_buffer_is_written_from_its_rows(kind: type, why: str) -> None:
    loss = tracer.capture(Stateful(kind, kind), batch=SHAPES).loss
    assert loss.reduction == ("other" if why else "sum")
    assert why in loss.why
    assert not why or "writing_models.py:" in loss.why


class WritesParameter(Writer):
    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        with torch.no_grad():
            self.one.weight.clamp_(-0.1, 0.1)
        return functional.mse_loss(self.two(self.one(x)), y)


class WritesWithoutGradient(Writer):
    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        h = self.one(x)
        with torch.no_grad():
            h[:, 0] = 0
        return functional.mse_loss(self.two(h), y)


class KeepsTensorAside(Writer):
    def __init__(self) -> None:
        super().__init__("")
        self.steps = torch.zeros(1)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        self.steps.add_(1)
        return functional.mse_loss(self.two(self.one(x)), y) * self.steps.sum()


class CountsInPython(Writer):
    def __init__(self) -> None:
        super().__init__("")
        self.steps = 0

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        self.steps += 1
        h = self.one(x)
        return functional.mse_loss(self.two(h * 2 if self.steps % 2 else h), y)


class AssignsInTrainingOnly(Writer):
    mean: Tensor

    def __init__(self) -> None:
        super().__init__("")
        self.register_buffer("mean", torch.zeros(WIDTH))

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        h = self.one(x)
        if self.training:
            self.mean = 0.9 * self.mean + 0.1 * h.detach().mean(0)
        return functional.mse_loss(self.two(h - self.mean), y)


class Resizes(Writer):
    seen: Tensor

    def __init__(self) -> None:
        super().__init__("")
        self.register_buffer("seen", torch.zeros(0, WIDTH))

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        self.seen = torch.cat([self.seen, x.detach()])
        return functional.mse_loss(self.two(self.one(x)), y)


class Sparse(Writer):
    def __init__(self) -> None:
        super().__init__("")
        self.table = nn.Embedding(10, WIDTH, sparse=True)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return functional.mse_loss(self.two(x + self.table((x[:, 0] > 0).long())), y)


class SparseBags(Sparse):
    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return functional.embedding_bag((x > 0).long(), self.table.weight, sparse=True).sum() + y.sum()


class NamedAsTorchDoes(Writer):
    def __init__(self) -> None:
        super().__init__("")
        self.register_buffer("graph", torch.ones(WIDTH))


class WritesThroughStrides(Writer):
    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        h = self.one(x)
        h.as_strided((x.shape[0],), (WIDTH,)).mul_(2)
        return functional.mse_loss(self.two(h), y)


@pytest.mark.parametrize(
    ("made", "words"),
    [
        (lambda: WritesParameter(""), ("clamp_", "test_functional.py:", "parameter one.weight")),
        (lambda: WritesWithoutGradient(""), ("test_functional.py:", "without a gradient")),
        (KeepsTensorAside, ("add_", "test_functional.py:", "register it as a buffer")),
        (CountsInPython, ("counts in steps", "keep it in a buffer")),
        (AssignsInTrainingOnly, ("buffer mean", "test_functional.py:", "in training only")),
        (Sparse, ("table wants sparse gradients", "sparse=False")),
        (SparseBags, ("test_functional.py:", "sparse=False")),
        (NamedAsTorchDoes, ("'graph'", "rename it")),
        (Resizes, ("buffer seen", "another type or size")),
        (lambda: WritesThroughStrides(""), ("mul_", "test_functional.py:", "as_strided")),
    ],
)
def test_what_cannot_be_captured_so_is_refused_with_its_line(
    made: Callable[[], nn.Module], words: tuple[str, ...]
) -> None:
    with pytest.raises(CaptureError) as refused:
        tracer.capture(made(), batch=SHAPES)
    for word in words:
        assert word in str(refused.value)


class DropsPooled(Writer):
    """The end of an EfficientNet: what is pooled and flattened is dropped in place."""

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        pooled = functional.adaptive_avg_pool1d(self.one(x)[..., None], 1).flatten(1)
        return functional.mse_loss(self.two(functional.dropout(pooled, 0.1, self.training, inplace=True)), y)


def test_a_dropout_into_a_view_becomes_one_that_gives_a_value() -> None:
    nodes = tracer.trace(DropsPooled(""), SHAPES).module.graph.nodes
    names = [str(node.target) for node in nodes if "dropout" in str(node.target)]
    assert names == ["aten.dropout.default"]


class CollectsGarbage(Writer):
    collecting: bool = True

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        CollectsGarbage.collecting = gc.isenabled()
        return functional.mse_loss(self.two(self.one(x)), y)


def test_no_garbage_is_collected_while_a_model_is_exported() -> None:
    assert gc.isenabled()
    tracer.capture(CollectsGarbage(""), batch=SHAPES)
    assert gc.isenabled() and not CollectsGarbage.collecting


def _product(h: Tensor) -> Tensor:
    squares = torch.matmul(h.view(-1, 4, 4), h.view(-1, 4, 4))
    squares.unsqueeze_(1)
    return squares.sum(1).view(-1, WIDTH)


def _view(h: Tensor) -> Tensor:
    v = h.unsqueeze(1)
    v.squeeze_(1)
    return v * h


def _then_written(h: Tensor) -> Tensor:
    v = (h * 2).view(-1, 4, 4)
    v.transpose_(1, 2)
    v[:, 0].mul_(3)
    v.squeeze_().swapaxes_(1, 2)
    return v.reshape(-1, WIDTH)


def _beside_an_earlier_view(h: Tensor) -> Tensor:
    whole = h.view(-1, 4, 4) * 2
    part = whole[:, :2]
    whole.swapdims_(1, 2).add_(1)
    return torch.cat([whole[:, :, 2:].flatten(1), part.flatten(1)], 1)


def _matrix(h: Tensor) -> Tensor:
    turned = h * 2
    turned.t_()
    return turned[: WIDTH // 2].t().repeat(1, 2)


TURNS = {"product": _product, "view": _view, "then_written": _then_written, "matrix": _matrix,
         "beside_an_earlier_view": _beside_an_earlier_view}  # fmt: skip


class Turns(Writer):
    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return functional.mse_loss(self.two(TURNS[self.name](self.one(x))), y)


class TurnsQuietly(Writer):
    def __init__(self, turn: Callable[[nn.Module, Tensor], Tensor]) -> None:
        super().__init__("")
        self.turn = turn

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        h = self.one(x)
        with torch.no_grad():
            self.turn(self, h)
        return functional.mse_loss(self.two(h.view(-1, WIDTH)), y) + self.one.weight.sum()


@pytest.mark.parametrize("name", TURNS)
def test_dims_changed_in_place_are_those_that_later_readers_find(name: str) -> None:
    torch.manual_seed(0)
    model = Turns(name).double()
    traced = tracer.trace(model, SHAPES)
    for rows in (8, 5):
        same(model, traced, rows)


def test_a_product_has_its_own_dims_not_those_that_it_is_given_later() -> None:
    """No rule for products can read a result of other dims."""
    graph = tracer.capture(Turns("product"), batch=SHAPES)
    calls = [call_of(kind, op, 8) for kind in graph.classes for op in kind.ops]
    products = [call for call in calls if call.target == "aten::matmul"]
    assert [call.outputs[0].shape for call in products] == [(8, 4, 4)]
    assert all(len(split_choices(call)) > 1 for call in products)


@pytest.mark.parametrize(
    ("turn", "words"),
    [
        (lambda model, h: model.one.weight.t_(), "one.weight"),
        (lambda model, h: h.mul_(2).unsqueeze_(1), "without its gradient"),
    ],
)
def test_what_a_step_would_leave_turned_or_without_gradient_is_refused(
    turn: Callable[[nn.Module, Tensor], Tensor], words: str
) -> None:
    with pytest.raises(CaptureError, match=f"_ at .*test_functional.py:.*{words}"):
        tracer.capture(TurnsQuietly(turn), batch=SHAPES)
