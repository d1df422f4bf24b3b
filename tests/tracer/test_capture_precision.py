"""A model that looks at its types is captured in those of the run, and runs as it does by itself."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import GPT2Config, GPT2LMHeadModel

import placer
from placer import tracer
from placer.errors import StalePlanError, UncapturableError, UsageError
from placer.plans.settings import Precision, RunSettings
from placer.runtime import load
from placer.runtime.verify.parity import verify
from placer.tracer.export.torchs_own.autocast_regions import for_autocast

LAYERS = 3
ROWS = 8


class Clamping(nn.Module):
    """A residual layer that clamps in float16 (as T5's, BART's and Whisper's), and adds in float32 in bfloat16."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(16, 16)

    def forward(self, h: torch.Tensor) -> torch.Tensor:
        """The same shape."""
        added = torch.tanh(self.inner(h))
        if added.dtype == torch.float16:
            added = added.clamp(-0.25, 0.25)
        if added.dtype == torch.bfloat16:
            return (h.to(torch.float32) + added * 2).to(h.dtype)
        return h + added


class Typed(nn.Module):
    """Some such layers and a loss in float32."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Clamping() for _ in range(LAYERS))
        self.head = nn.Linear(16, 4)

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """The loss of a batch."""
        for layer in self.layers:
            x = layer(x)
        return functional.cross_entropy(self.head(x).float(), labels)


class Spun(nn.Module):
    """A product with complex numbers that are learned."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(8, 8)
        self.turns = nn.Parameter(torch.ones(8, dtype=torch.complex64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """A loss."""
        turned: torch.Tensor = self.inner(x) * self.turns
        return turned.abs().sum()


def batch() -> dict[str, torch.Tensor]:
    """The same each time."""
    drawn = torch.Generator().manual_seed(3)
    x = torch.randn(ROWS, 16, generator=drawn)
    return {"x": x, "labels": torch.randint(4, (ROWS,), generator=drawn)}


def plan_in(precision: Precision, *pins: str) -> placer.Plan:
    return placer.plan(
        "test_capture_precision:Typed", "localx1", batch=batch(), settings=RunSettings(precision=precision), pins=pins
    )


@pytest.mark.in_turns
@pytest.mark.parametrize("precision", ["float64", "float32", "bfloat16", "float16"])
def test_its_loss_is_that_of_the_model_in_the_precision_of_the_run(precision: Precision) -> None:
    plan = plan_in(precision)
    torch.manual_seed(plan.seed)
    model = Typed().to(getattr(torch, precision))
    given = batch()
    with torch.no_grad():
        expected = model(given["x"].to(model.head.weight.dtype), given["labels"])
        otherwise = Typed.forward(model.double(), given["x"].double(), given["labels"])
    found = load(plan).step({**given, "x": given["x"].to(getattr(torch, precision))})
    assert found == pytest.approx(float(expected), rel=1e-6)
    if precision in ("bfloat16", "float16"):
        assert abs(found - float(otherwise)) > 1e-3, "the model does the same in float64: this test could not fail"


def test_a_cast_is_priced_in_the_type_it_has_in_the_run() -> None:
    graph = plan_in("bfloat16").graph
    types = {one.dtype for kind in graph.classes for op in kind.ops for one in op.outputs}
    assert {"bfloat16", "float32"} <= types and {one.tensor.dtype for one in graph.inputs} == {"bfloat16", "int64"}


def test_the_model_given_keeps_its_type() -> None:
    with torch.device("meta"):
        model = Typed()
    graph = placer.capture(model, batch=batch(), precision="float16")
    assert {parameter.dtype for parameter in graph.parameters.values()} == {"float16"}
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}


class Run(Typed):
    """The same model as the script that is run knows it."""


Run.__name__ = Run.__qualname__ = "Typed"
Run.__module__ = "__main__"


def test_the_model_of_the_script_that_runs_is_that_of_its_module() -> None:
    plan = plan_in("float32")
    assert load(plan, Run()).step(batch()) > 0
    with pytest.raises(StalePlanError, match="made for another model"):
        load(plan, Spun())


class Paired(Typed):
    """Gives the loss after something else."""

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:  # type: ignore[override]
        """What the loss is made of, and the loss."""
        return x * 2, super().forward(x, labels)


def test_a_loss_that_comes_second_is_asked_for() -> None:
    with pytest.raises(UsageError, match=r"gives 2 tensors, of which number 2 is one number.*return output\[1\]"):
        placer.plan(Paired(), "localx1", batch=batch())


def test_complex_numbers_have_no_sixteen_bits() -> None:
    shapes = {"x": (ROWS, 8)}
    with pytest.raises(UsageError, match="turns is complex"):
        placer.capture(Spun(), batch=shapes, precision="bfloat16")
    graph = placer.capture(Spun(), batch=shapes, precision="float64")
    assert graph.parameters["turns"].dtype == "complex128"


class FullInBetween(nn.Module):
    """Has autocast off around what `inner` does, for the kind of device that its input lies on."""

    def __init__(self, inner: str) -> None:
        super().__init__()
        self.layer, self.inner = nn.Linear(4, 4), inner

    def forward(self, x: Tensor) -> Tensor:
        region = torch.autocast(x.device.type, enabled=False)
        with region:
            made = self.layer(x) if self.inner == "product" else self.again(x, region)
        loss: Tensor = (made * self.layer(x)).square().mean()
        return loss

    @staticmethod
    def again(x: Tensor, region: torch.autocast) -> Tensor:
        with region:
            return x.sin()


@pytest.mark.in_turns
@pytest.mark.parametrize("inner", ["product", "sine"])
@pytest.mark.parametrize("precision", ["float64", "bfloat16"])
def test_where_no_autocast_is_on_it_may_be_off_for_any_kind_of_device(inner: str, precision: Precision) -> None:
    assert not tracer.capture(FullInBetween(inner), batch={"x": (6, 4)}, precision=precision).notes


def test_products_that_a_run_under_autocast_would_narrow_are_refused_with_their_line() -> None:
    tracer.capture(FullInBetween("sine"), batch={"x": (6, 4)}, precision="bfloat16-autocast")
    with pytest.raises(UncapturableError, match=r"test_capture_precision.py:.* autocast off around linear"):
        tracer.capture(FullInBetween("product"), batch={"x": (6, 4)}, precision="bfloat16-autocast")


def test_a_submodule_that_does_them_may_run_as_it_is() -> None:
    model = nn.Sequential(nn.Linear(4, 4), FullInBetween("product"))
    graph = tracer.capture(model, batch={"input": (6, 4)}, precision="bfloat16-autocast", opaque=["1"])
    assert any("opaque" in op.target for _, op in graph.ops)


def test_a_plan_that_is_edited_to_run_under_autocast_is_held_to_that_too() -> None:
    graph = tracer.capture(model := FullInBetween("product"), batch={"x": (6, 4)}, precision="float32")
    tracer.trace(model, graph)
    with for_autocast(True), pytest.raises(UncapturableError, match="autocast off around linear"):
        tracer.trace(model, graph)


def test_so_are_those_that_transformers_keeps_out_of_autocast() -> None:
    config = GPT2Config(n_embd=8, n_layer=1, n_head=2, vocab_size=16, n_positions=8, reorder_and_upcast_attn=True)
    config._attn_implementation = "eager"
    model, batch = GPT2LMHeadModel(config), {"input_ids": (2, 8), "labels": (2, 8)}
    tracer.capture(model, batch=batch, precision="float32")
    with pytest.raises(UncapturableError, match=r"modeling_gpt2.py:.* autocast off around baddbmm"):
        tracer.capture(model, batch=batch, precision="bfloat16-autocast")


Products = Callable[[Tensor], Tensor]
NARROWED: dict[str, Products] = {
    "inner": lambda x: torch.inner(x, x),
    "outer": lambda x: torch.outer(x[0], x[0]),
    "linalg_matmul": lambda x: torch.linalg.matmul(x, x.t()),
    "mm": lambda x: torch.ops.aten.mm.default(x, x.t()),
    "linalg_matrix_power": lambda x: torch.linalg.matrix_power(x[:4], 3),
}


class Exact(nn.Module):
    """Has autocast off around a product of what it takes, or of what that is in another type."""

    def __init__(self, made: Products, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.made, self.dtype, self.layer = made, dtype, nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        with torch.autocast(x.device.type, enabled=False):
            number = self.made(x.to(self.dtype)).to(x.dtype).mean()
        loss: Tensor = self.layer(x).square().mean() * number
        return loss


@pytest.mark.parametrize("name", NARROWED)
def test_products_by_other_names_are_refused_too(name: str) -> None:
    with pytest.raises(UncapturableError, match=f"autocast off around {name}"):
        tracer.capture(Exact(NARROWED[name]), batch={"x": (6, 4)}, precision="bfloat16-autocast")


@pytest.mark.in_turns
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_products_of_types_that_autocast_leaves_as_they_are_are_taken(dtype: torch.dtype) -> None:
    made = Exact(NARROWED["inner"], dtype)
    assert tracer.capture(made, batch={"x": (6, 4)}, precision="bfloat16-autocast").loss.reduction != "none"


class Switches(Exact):
    """Switches autocast off by hand."""

    def forward(self, x: Tensor) -> Tensor:
        torch.set_autocast_enabled("cpu", False)
        return super().forward(x)


def test_autocast_that_forward_switches_by_hand_is_refused() -> None:
    with pytest.raises(UncapturableError, match="set_autocast_enabled"):
        tracer.capture(Switches(torch.sin), batch={"x": (6, 4)}, precision="bfloat16-autocast")


class Told(nn.Module):
    """It reads the type of what it computes as a text, and gives types as texts and as classes."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 4)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        h = self.layer(x)
        few = (x[:, :4] < 1).type(torch.FloatTensor)  # type: ignore[call-overload]  # torch takes a class too
        kept = (x[:, :4] > 0).type(h.type()) * few.type(h.type())
        return functional.cross_entropy(h * kept, y.type("torch.LongTensor"))


class MovedAlone(Told):
    """Its own `to` takes a device and no type."""

    def to(self, device: torch.device) -> MovedAlone:  # type: ignore[override]
        return super().to(device)


@pytest.mark.in_turns
@pytest.mark.parametrize("kind", [Told, MovedAlone])
def test_types_are_told_without_a_device_and_given_past_a_to_that_takes_none(kind: type[nn.Module]) -> None:
    plan = placer.plan(f"{__name__}:{kind.__name__}", "localx1", batch="x=8x6,y=8:int64")
    assert verify(plan, 2, precision="float64").passed
