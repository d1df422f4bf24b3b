"""A part of a model that cannot be exported is one opaque op: counted or stated, placed whole, run as it is."""

from __future__ import annotations

import re
import weakref
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.autograd.graph import saved_tensors_hooks

import placer
from opaque_models import (
    WIDTH,
    Around,
    AsksInBackward,
    Between,
    Branches,
    ByNumpy,
    Encoded,
    Force,
    HookedLayer,
    Neighbours,
    OwnDraws,
    Ragged,
    Recurrent,
    Routed,
    Router,
    Triplets,
    Watched,
    around,
    averaged,
    grown,
    routed,
    twice,
)
from placer.errors import CaptureError, UncapturableError, UsageError
from placer.graph import Affine, Graph, Op
from placer.rules import OpaqueCost
from placer.rules.rows import whole_batch_reason
from placer.tracer import capture, coverage, trace
from placer.tracer.export import exporting
from placer.tracer.export.exporting import Training
from placer.tracer.export.torchs_own.saved import without_saved_hooks
from placer.tracer.export.unseen import UnseenError

pytestmark = pytest.mark.in_turns

ROWS = 6
BATCH = {"x": (ROWS, WIDTH)}
FORWARD = 2 * WIDTH * WIDTH  # FLOPs of one row of the router's layer


def opaque_op(graph: Graph) -> Op:
    (found,) = [op for _, op in graph.ops if op.kind == "opaque"]
    return found


def test_a_part_that_depends_on_values_is_found_and_said() -> None:
    graph = capture(routed(), batch=BATCH)
    assert opaque_op(graph).target == "placer.opaque.default"
    assert any(note.startswith("router cannot be exported and is one opaque op") for note in graph.notes)


def test_its_flops_are_counted_by_running_it() -> None:
    op = opaque_op(capture(routed(), batch=BATCH, opaque=["router"]))
    assert op.forward_flops == Affine(0, FORWARD)
    assert op.backward_flops == Affine(0, 2 * FORWARD)
    assert op.covered


def test_its_stated_cost_is_taken() -> None:
    cost = OpaqueCost(flops=1000, fixed=50)
    op = opaque_op(capture(routed(), batch=BATCH, opaque={"router": cost}))
    assert (op.forward_flops, op.backward_flops) == (Affine(50, 1000), Affine(100, 2000))


def test_its_stated_seconds_are_what_it_takes() -> None:
    slow = OpaqueCost(seconds=0.5, rows_apart=True)
    plans = [placer.plan("opaque_models:routed", "a100x1", batch=BATCH, opaque={"router": cost}, pins=("data=1",))
             for cost in (OpaqueCost(rows_apart=True), slow)]  # fmt: skip
    spent = [plan.ledger.step_seconds for plan in plans if plan.ledger is not None]
    assert spent[1] - spent[0] == pytest.approx(3 * 0.5 * ROWS, rel=0.01)  # forward once, backward twice


def test_it_is_timed_on_this_machine_where_that_is_asked() -> None:
    op = opaque_op(capture(routed(), batch=BATCH, opaque={"router": OpaqueCost(timed=True)}))
    assert op.seconds is not None
    assert op.seconds[1] > 0


def test_what_it_keeps_and_its_weights_are_known() -> None:
    graph = capture(routed(), batch=BATCH, opaque=["router"])
    assert opaque_op(graph).saved_bytes.at(ROWS) >= 4 * ROWS * WIDTH
    names = {name for block in graph.blocks for name in block.parameters}
    assert {f"router.{layer}.{kind}" for layer in ("one", "other") for kind in ("weight", "bias")} <= names
    assert not coverage(graph).uncovered


def test_the_batch_is_split_only_where_it_is_said_that_rows_stay_apart() -> None:
    whole = capture(routed(), batch=BATCH, opaque=["router"])
    apart = capture(routed(), batch=BATCH, opaque={"router": OpaqueCost(rows_apart=True)})
    assert whole.loss.reduction == "other"
    assert "router is opaque" in whole.loss.why
    assert "opaque={'router': OpaqueCost(rows_apart=True)}" in whole.loss.why
    assert apart.loss.reduction == "sum"
    assert not whole_batch_reason(apart, statistics=False)


class SumOfChosen(nn.Module):
    """A sum over as many numbers as values say."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x[x > 0].sum()


class ByCount(nn.Module):
    """A loss whose sum a part gives, and its count the batch."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.chosen = nn.Linear(WIDTH, WIDTH), SumOfChosen()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        loss: torch.Tensor = self.chosen(self.first(x)) / (x > 0).sum()
        return loss


def test_a_number_that_a_part_makes_of_all_rows_is_not_that_of_a_piece_whatever_is_said_of_its_rows() -> None:
    graph = capture(ByCount(), batch=BATCH, opaque={"chosen": OpaqueCost(rows_apart=True)})
    said = whole_batch_reason(graph, statistics=False)
    assert "is opaque, and gives a number without rows of what has rows" in said


def test_a_part_that_writes_a_buffer_sees_the_whole_batch_whatever_is_said_of_its_rows() -> None:
    graph = capture(averaged(), batch=BATCH, opaque={"average": OpaqueCost(rows_apart=True)})
    assert "average is opaque and writes its buffer mean, once a step" in whole_batch_reason(graph, statistics=False)


@pytest.mark.parametrize(
    ("made", "said"),
    [(twice, "average is opaque and writes its buffer mean, which 2 calls of opaque parts read"),
     (grown, "average is opaque and makes of its buffer mean, (8,) torch.float32, one of (16,)")],
)  # fmt: skip
def test_a_buffer_that_stages_would_each_have_or_that_grows_is_refused(
    made: Callable[[], nn.Module], said: str
) -> None:
    with pytest.raises(UncapturableError, match=re.escape(said)):
        capture(made(), batch=BATCH, opaque=["average"])


def test_the_traced_graph_runs_the_part_itself_exactly() -> None:
    torch.manual_seed(0)
    model = Routed().double()
    graph = capture(Routed().double(), batch=BATCH, opaque=["router"])
    run = trace(model, graph).module
    for sign in (1.0, -1.0):  # one layer of the router, then the other
        x = torch.full((ROWS, WIDTH), sign, dtype=torch.float64) + torch.randn(ROWS, WIDTH, dtype=torch.float64)
        expected = torch.autograd.grad(model(x), list(model.parameters()), allow_unused=True)
        found = torch.autograd.grad(run(x)[0], list(model.parameters()), allow_unused=True)
        assert [g is None for g in found] == [g is None for g in expected]
        assert all(a is None or b is None or torch.equal(a, b) for a, b in zip(found, expected, strict=True))


def test_a_part_that_cannot_take_zeros_is_tried_on_small_numbers() -> None:
    """Where all rows are of one class, none is of another: torch's min of nothing raises."""
    batch = {"x": ((ROWS, WIDTH), "float32"), "classes": ((ROWS,), "int64")}
    for named in ([], ["hardest"]):  # found by itself in a loop over the rows, which other rows make a longer one
        graph = capture(Triplets(), batch=batch, opaque=named)
        assert opaque_op(graph).target == "placer.opaque.default"
    model = Triplets().double()
    run = trace(model, capture(Triplets().double(), batch=batch)).module
    x, classes = torch.randn(ROWS, WIDTH, dtype=torch.float64), torch.arange(ROWS) // 2
    assert torch.equal(run(x, classes)[0], model(x, classes))


def test_a_part_told_of_a_value_is_part_of_what_looked_at_it() -> None:
    """The layers fail, and by themselves they cannot be run: the encoder is the part that can."""
    graph = capture(Encoded(), batch=BATCH)
    assert "'router'" in opaque_op(graph).arguments
    assert [note.partition(" ")[0] for note in graph.notes] == ["router"]
    with pytest.raises(CaptureError, match=r"router\.layers\.0 is to be opaque.*make a part around it opaque"):
        capture(Encoded(), batch=BATCH, opaque=["router.layers.0"])


class Mistaken(nn.Module):
    """Right for no numbers, in a line that an export does not come to."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        seen = float(x.detach().numpy().sum())
        return (x * torch.full((WIDTH + 1,), seen)).mean()


def test_a_mistake_in_a_part_that_cannot_be_exported_is_told_with_its_line() -> None:
    with pytest.raises(CaptureError, match=r"test_opaque\.py:\d+ \(return \(x \* torch\.full.*correct that line, or"):
        model = nn.Sequential(nn.Linear(WIDTH, WIDTH), Mistaken())
        capture(model, batch={"input": (ROWS, WIDTH)})


class Counting(nn.Module):
    """Looks at as many features as there are places for them, of which there are none in what a part is tried on."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        places = x[x > 100]
        if places.numel() != len(x):
            raise ValueError("features and places do not match")
        return places


def test_a_part_that_nobody_asked_for_and_that_fails_is_told_with_what_it_was_taken_for() -> None:
    """What the model does that cannot be planned, which is the reason, before what the try of the part raised."""
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), Counting())
    with pytest.raises(CaptureError, match=r"Could not guard.*So 1 was tried as one opaque op.*do not match"):
        capture(model, batch={"input": (ROWS, WIDTH)})
    with pytest.raises(CaptureError, match=r"^1 is to be opaque"):
        capture(model, batch={"input": (ROWS, WIDTH)}, opaque=["1"])


def test_an_error_is_not_its_own_cause() -> None:
    class Asking(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + 1 if x.sum() > 0 else x

    with pytest.raises(CaptureError) as told:
        capture(Asking(), batch={"x": (ROWS, WIDTH)})
    assert told.value.__cause__ is not told.value


def test_it_is_placed_whole_and_a_pipeline_goes_around_it() -> None:
    plan = placer.plan("opaque_models:routed", "a100x2", batch=BATCH, pins=("pipeline=2",))
    assert len(plan.stages) == 2
    assert len(plan.microbatches) == 1  # its rows may mix
    assert any("router" in note for note in plan.assumptions)


def test_a_name_that_is_no_submodule_is_refused() -> None:
    with pytest.raises(UsageError, match="no submodule 'rooter'"):
        capture(routed(), batch=BATCH, opaque=["rooter"])


class Odd(Routed):
    """A router called in two ways."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.Tensor.mean(self.router(x, scale=1.0) + self.router(x, scale=2.0))


def test_a_part_called_in_two_ways_is_refused() -> None:
    with pytest.raises(CaptureError, match="router is called with other arguments each time"):
        capture(Odd(), batch=BATCH, opaque=["router"])


def test_a_branch_of_the_model_itself_is_still_an_error() -> None:
    class Whole(Routed):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.sum() if x.sum() > 0 else self.first(x).sum()

    with pytest.raises(CaptureError, match="do not depend on the values"):
        capture(Whole(), batch=BATCH)


def test_what_has_sizes_by_values_is_said_to_be_for_a_submodule() -> None:
    class Chosen(Routed):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            (places,) = torch.where(x[:, 0] > 0)
            return torch.Tensor.sum(self.first(x[places]))

    with pytest.raises(
        CaptureError, match=r"aten::where gives .* by the values .* submodule .* \(--opaque NAME\)"
    ) as error:
        capture(Chosen(), batch=BATCH)
    assert "meta_nonzero" not in str(error.value)


def test_what_counts_values_is_told_how_to_count_them_into_a_fixed_size() -> None:
    class Counted(Routed):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.Tensor.sum(self.first(x) / torch.bincount((x[:, 0] > 0).long(), minlength=2).amax())

    with pytest.raises(CaptureError, match=r"aten::bincount gives more .*torch\.zeros\(n\)\.index_add") as error:
        capture(Counted(), batch=BATCH)
    assert "mask of fixed size" not in str(error.value)


def test_the_model_is_left_as_it_was() -> None:
    model = Routed()
    capture(model, batch=BATCH, opaque=["router"])
    assert "forward" not in vars(model.router)
    assert replace(capture(model, batch=BATCH, opaque=["router"]), notes=()).blocks


@pytest.mark.parametrize(
    ("part", "told"),
    [
        (Recurrent(hides=False), "it keeps last from one call to the next"),
        (Recurrent(hides=True), "it keeps last from one call to the next"),
        (OwnDraws(), "it draws numbers of its own"),
    ],
)
def test_a_part_that_gives_something_else_when_it_is_called_again_is_refused(part: nn.Module, told: str) -> None:
    for opaque in ((), ("router",)):
        with pytest.raises(UncapturableError, match=f"router is opaque and gives other results .*{told}"):
            capture(around(part), batch=BATCH, opaque=opaque)


def test_a_part_that_draws_by_torchs_generator_and_keeps_what_it_does_not_read_is_none_of_these() -> None:
    assert opaque_op(capture(around(Watched()), batch=BATCH))


def test_a_part_whose_backward_asks_for_ranks_is_refused() -> None:
    with pytest.raises(UncapturableError, match="router is opaque and its backward asks torch"):
        capture(around(AsksInBackward()), batch=BATCH)


@pytest.mark.filterwarnings("ignore:The .grad attribute")  # which torch.cond asks for
@pytest.mark.parametrize("part", [Branches, Force, Around, Ragged, Neighbours, ByNumpy, HookedLayer])
def test_a_part_that_runs_and_cannot_be_exported_is_found_and_run_exactly(part: type[nn.Module]) -> None:
    torch.manual_seed(0)
    model = Between(part()).double()
    graph = capture(Between(part()).double(), batch=BATCH)
    assert [note.partition(" cannot be exported")[0] for note in graph.notes] == ["part"]
    assert opaque_op(graph).forward_flops.per_row + opaque_op(graph).saved_bytes.per_row > 0
    run = trace(model, graph).module
    with saved_tensors_hooks(lambda tensor: tensor, lambda tensor: tensor):  # a run measures what is saved
        for sign in (1.0, -1.0):
            x = torch.full((ROWS, WIDTH), sign, dtype=torch.float64) + torch.randn(ROWS, WIDTH, dtype=torch.float64)
            found = torch.autograd.grad(run(x)[0], list(model.parameters()), allow_unused=True)
            with without_saved_hooks():
                expected = torch.autograd.grad(model(x), list(model.parameters()), allow_unused=True)
            assert all(a is b or torch.allclose(a, b, rtol=1e-12) for a, b in zip(found, expected, strict=True))


def test_parts_that_share_a_layer_are_found_too() -> None:
    one, other = Router(), Router()
    other.one = one.one
    graph = capture(Between(nn.Sequential(one, other)), batch=BATCH)
    assert [note.partition(" cannot be exported")[0] for note in graph.notes] == ["part.0", "part.1"]


def test_what_a_part_raises_by_itself_too_is_the_models_mistake() -> None:
    with pytest.raises(CaptureError, match=r"opaque_models.py:\d+ \(y = self.last\(self.part.*correct that line"):
        capture(Between(nn.Linear(WIDTH + 1, WIDTH)), batch=BATCH)


def test_a_mistake_of_the_model_is_refused_before_a_part_is_tried() -> None:
    seen = set[str]()

    class Wrong(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(WIDTH, WIDTH)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            seen.add(x.device.type)
            made: torch.Tensor = self.layer(x) * self.scale
            return made

    with pytest.raises(CaptureError, match=r"no attribute 'scale' at .*correct that line"):
        capture(Between(nn.Sequential(Branches(), Wrong())), batch=BATCH)
    assert seen == {"meta"}


def test_what_was_tried_in_vain_leaves_the_memory_before_the_next_try() -> None:
    alive, most = weakref.WeakSet[nn.Module](), [0]

    class Watched(Ragged):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if not x.is_meta:
                alive.add(self)
                most[0] = max(most[0], len(alive))
            return super().forward(x)

    capture(Between(Watched()), batch=BATCH)
    assert most == [1]


def test_what_the_model_itself_does_and_an_export_does_not_know_goes_into_a_submodule() -> None:
    class Unknown(Branches):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x).mean()

    with pytest.raises(CaptureError, match=r"do it in a submodule of the model.*\(--opaque NAME\)$") as error:
        capture(Unknown(), batch=BATCH)
    assert "correct that line" not in str(error.value)


def test_a_sparse_buffer_is_refused_with_what_is_run_in_its_place() -> None:
    with pytest.raises(UncapturableError, match=r"part\.adjacency is sparse_coo.*torch\.sparse_coo_tensor"):
        capture("opaque_models:keeps_sparse", batch=BATCH)
    assert capture(Between(Neighbours()), batch=BATCH)


def test_a_part_may_return_a_dict_of_tensors_and_is_told_of_what_else_is_in_it() -> None:
    class Named(nn.Module):
        def __init__(self, name: str | None) -> None:
            super().__init__()
            self.name = name

        def forward(self, x: torch.Tensor) -> dict[str, object]:
            return {"h": x * 2 if x.sum() > 0 else x, "name": self.name}

    class Reads(Between):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.Tensor.mean(self.last(self.part(self.first(x))["h"]))

    assert opaque_op(capture(Reads(Named(None)), batch=BATCH))
    with pytest.raises(CaptureError, match="it returns a str; an opaque part returns tensors, in tuples and dicts too"):
        capture(Reads(Named("x")), batch=BATCH)


@pytest.mark.parametrize("twice", [False, True])
def test_what_is_refused_within_what_torch_raises_of_it_is_told(twice: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Dynamo wraps what it meets as it exports branches, in some processes and not in others."""
    refused = UnseenError("the model cannot be captured: a function of its own", "part")

    def wrapping(*_: object) -> nn.Module:
        try:
            raise refused
        except UnseenError as error:
            raise RuntimeError("when making a fake tensor call") from error

    def wrapping_that(*_: object) -> nn.Module:
        try:
            return wrapping()
        except RuntimeError as error:
            raise TypeError(str(error)) from None

    monkeypatch.setattr(exporting, "_exported", wrapping_that if twice else wrapping)
    with pytest.raises(UnseenError) as found:
        exporting.export(Training(nn.Linear(2, 2), None), {"x": torch.empty(2, 2)})
    assert found.value is refused
