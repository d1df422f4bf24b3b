"""The judge of `verify`: the model in a plain loop, legal batches, masks by definition, rounding apart from error."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

import verify_ranks
import writing_models
from examples.parity import models as parity_models
from examples.parity.cases import Case, capture_of, plan_of
from placer import api, tracer
from placer.errors import UsageError
from placer.graph import Graph
from placer.plans.settings import Precision, RunSettings
from placer.runtime.stages.dropout import dropout
from placer.runtime.stages.keyed_numbers import NO_ROW, row_keys
from placer.runtime.stages.pass_context import PassContext
from placer.runtime.verify import memory, parity
from placer.runtime.verify.accepted import accepted_differences
from placer.runtime.verify.batches import left_out, uneven_batch
from placer.runtime.verify.eager.masks import MaskedDropout
from placer.runtime.verify.eager.norms import PiecewiseNorms
from placer.runtime.verify.eager.run import EagerRun
from placer.runtime.verify.keyed_masks import KeyedMasks
from placer.runtime.verify.verdict import Allowed, scalar, tensors
from pool import on_ranks

pytestmark = pytest.mark.in_turns

WORDS = Case(model="examples.parity.models:words", shapes=parity_models.TEXT)
DROPPING = replace(WORDS, model="examples.parity.models:dropping_words")
IMAGES = Case(model="examples.parity.models:images", shapes=parity_models.IMAGES)
REPEATED = Case(model="verify_ranks:repeated_words", shapes=(("tokens", (8, 6)),))
RECURRENT = Case(model="verify_ranks:recurrent", shapes=(("x", (8, 5, 4)), ("labels", (8,))))
GEMMA2 = Case(model="examples.parity.models:gemma2", shapes=(("input_ids", (8, 12)), ("labels", (8, 12))))


@pytest.mark.parametrize("settings", [
    RunSettings(precision="float64"),
    RunSettings(precision="float64", optimizer="sgd", momentum=0.9, learning_rate=0.1, clip_norm=0.01),
    RunSettings(precision="float64", optimizer="sgd", clip_norm=None),
], ids=["adamw", "sgd, clipped", "sgd"])  # fmt: skip
def test_the_judge_is_a_plain_loop_bit_for_bit(settings: RunSettings) -> None:
    model = parity_models.words().double()
    batches = [uneven_batch(plan_of(WORDS), step) for step in range(3)]
    ours = EagerRun(copy.deepcopy(model), settings)
    optimizer = (
        torch.optim.SGD(
            model.parameters(), settings.learning_rate, settings.momentum, weight_decay=settings.weight_decay
        )
        if settings.optimizer == "sgd"
        else torch.optim.AdamW(model.parameters(), settings.learning_rate, settings.betas, settings.epsilon, 0.01)
    )
    for batch in batches:
        optimizer.zero_grad()
        loss = model(**batch)
        loss.backward()
        if settings.clip_norm is not None:
            nn.utils.clip_grad_norm_(model.parameters(), settings.clip_norm)
        optimizer.step()
        found = ours.step(batch)
        assert found.loss == float(loss.detach())
        assert all(tensor.equal(found.state[name]) for name, tensor in model.state_dict().items())


def test_what_is_undone_is_also_a_buffer_that_forward_assigns_anew() -> None:
    run = EagerRun(writing_models.counting().double(), RunSettings(precision="float64"))
    batch, before = {name: torch.ones(shape, dtype=torch.float64) for name, shape in writing_models.BATCH}, run.state()
    with run.undone():
        run.backward(batch)
        assert not run.state()["layers.0.three"].equal(before["layers.0.three"])
    assert all(tensor.equal(before[name]) for name, tensor in run.state().items())


@pytest.mark.parametrize("dim", [None, 0, 1])
def test_masks_by_their_definition_are_those_of_the_runtime(dim: int | None) -> None:
    masks = KeyedMasks(seed=7, rows=6, dims=(0, dim))
    mode = PassContext(
        rows=6, global_rows=6, training=True, keys=row_keys(7, 3, 0, 6), batch_key=row_keys(7, 3, NO_ROW, 1)
    )
    shape = torch.Size((12, 36, 4))
    found = masks.mask(3, 1, tuple(shape), 0.3)
    assert found.equal(dropout(torch.ones(shape), 0.3, 1, dim, mode) != 0)
    assert float(found.double().mean()) == pytest.approx(0.7, abs=0.03)


def test_the_judge_refuses_masks_for_dropout_that_it_does_not_meet() -> None:
    model = parity_models.dropping_words().double()
    masks = KeyedMasks(seed=0, rows=8, dims=(0,) * 5)
    with pytest.raises(UsageError, match="drops 4 times in a step by itself, 5 times as captured"):
        EagerRun(model, RunSettings(precision="float64"), masks=masks).step(uneven_batch(plan_of(DROPPING), 0))


class Norm(nn.Module):
    """One batch norm."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = self.norm(x)
        return made


def test_norms_by_groups_of_rows_are_those_of_the_groups_alone() -> None:
    x, whole, parts = torch.randn(8, 3), Norm(), Norm()
    groups = ((0, 3, True), (3, 5, False), (5, 8, True))
    with PiecewiseNorms((groups,)):
        found = whole(x)
    alone = [parts(x[first:end]) if moves else Norm()(x[first:end]) for first, end, moves in groups]
    assert found.equal(torch.cat(alone))
    counts = whole.state_dict().pop("norm.num_batches_tracked"), parts.state_dict().pop("norm.num_batches_tracked")
    assert counts == (1, 2)  # one batch, of which the norm alone saw two groups
    statistics = ("norm.running_mean", "norm.running_var")
    assert all(whole.state_dict()[name].equal(parts.state_dict()[name]) for name in statistics)


def test_labels_that_are_only_compared_are_left_out_and_ids_never() -> None:
    assert left_out(_graph(WORDS)) == {"labels": -100}
    assert left_out(_graph(IMAGES)) == {"labels": -100}
    assert left_out(_graph(REPEATED)) == {}
    batches = [uneven_batch(plan_of(REPEATED), step) for step in range(3)]
    assert min(int(batch["tokens"].min()) for batch in batches) >= 0


def test_the_first_step_has_labels_in_every_microbatch_and_later_ones_have_an_empty_one() -> None:
    plan = plan_of(WORDS)
    counts = [
        [int((part != -100).sum()) for part in torch.split(uneven_batch(plan, step)["labels"], list(plan.microbatches))]
        for step in range(4)
    ]
    assert [[at for at, count in enumerate(step) if not count] for step in counts] == [[], [2], [1], [0]]


def _graph(case: Case) -> Graph:
    return plan_of(case).graph


@pytest.mark.parametrize(("error", "equal"), [(0.5e-9, True), (2e-9, False), (float("nan"), False)])
def test_a_number_is_held_to_what_is_allowed(error: float, equal: bool) -> None:
    allowed = Allowed(precision="float64", relative=1e-9)
    assert scalar(0, "loss", 1.0 + error, 1.0, allowed).equal == equal


def test_rounding_of_a_small_tensor_is_no_error_and_an_error_of_its_size_is_one() -> None:
    theirs = {"large": torch.ones(3), "small": torch.full((3,), 1e-9)}
    allowed = Allowed(precision="float32", relative=1e-7, noise={"small": 1e-9})
    assert tensors(0, "gradients", {**theirs, "small": torch.full((3,), 4e-9)}, theirs, allowed).equal
    wrong = tensors(0, "gradients", {**theirs, "small": torch.full((3,), 1e-7)}, theirs, allowed)
    assert (wrong.equal, wrong.where) == (False, "small")


def test_no_gradient_is_no_gradient_of_zeros() -> None:
    theirs = {"used": torch.ones(2)}
    allowed = Allowed(precision="float64", relative=1e-9)
    extra = tensors(0, "gradients", {**theirs, "unused": torch.zeros(2)}, theirs, allowed)
    missing = tensors(0, "gradients", {}, theirs, allowed)
    assert not extra.equal and "on one device it has none" in extra.where
    assert not missing.equal and "missing" in missing.where


@pytest.mark.parametrize("case", [replace(REPEATED, positions=2), replace(RECURRENT, replicas=2)], ids=str)
def test_ids_that_are_labels_too_and_recurrent_layers_are_verified(case: Case) -> None:
    report = on_ranks(2, verify_ranks.one, plan_of(case))[0]
    assert report.passed, str(report)


@pytest.mark.parametrize("precision", ["float32", "bfloat16", "bfloat16-autocast"])
def test_rounding_near_zero_is_not_taken_for_an_error(precision: str) -> None:
    plan = plan_of(replace(GEMMA2, positions=4, precision=precision))  # type: ignore[arg-type]  # one of them
    report = on_ranks(4, verify_ranks.one, plan)[0]
    assert report.passed, str(report)
    assert {entry.precision for entry in report.comparisons} == {"float64", precision}


def test_gradients_too_small_for_16_bits_move_weights_as_the_judge_does() -> None:
    """A key's bias has a gradient of rounding alone: summed over two microbatches in float32 it is 1e-8, where float16
    has 0, which AdamW makes a whole step of; the judge is told the gradient as it is."""
    shapes = (("input_ids", (4, 16)), ("labels", (4, 16)))
    case = Case(model="examples.models:tiny_gpt2", shapes=shapes, precision="float16", microbatches=(2, 2))
    report = on_ranks(1, verify_ranks.one, plan_of(case))[0]
    assert report.passed, str(report)


def test_a_loss_of_ones_own_gets_labels_that_forward_does_not_take() -> None:
    plan = api.plan(
        verify_ranks.scores(), "localx1", batch={"x": (8, 4), "labels": ((8,), torch.int64)}, loss_fn=verify_ranks.loss
    )
    report = parity.verify(plan, 2, model=verify_ranks.scores())
    assert report.passed, str(report)


def test_a_model_that_knows_no_float64_is_verified_in_its_own_and_the_report_says_why() -> None:
    plan = plan_of(Case(model="examples.models:tiny_mixtral", precision="float32"))
    report = parity.verify(plan, 1, capture=capture_of(plan))
    assert report.passed, str(report)
    assert {entry.precision for entry in report.comparisons} == {"float32"}
    assert any(note.startswith("not in float64") for note in report.notes)
    with pytest.raises(UsageError, match="--precision plan"):
        parity.verify(plan, 1, capture=capture_of(plan), precision="float64")


@pytest.mark.parametrize(("precision", "expected"), [("plan", {"float32"}), ("float64", {"float64"})])
def test_one_precision_can_be_asked_for(precision: parity.PrecisionAsked, expected: set[str]) -> None:
    report = parity.verify(plan_of(replace(WORDS, precision="float32")), 1, precision=precision)
    assert report.passed, str(report)
    assert {entry.precision for entry in report.comparisons} == expected


def test_a_batch_that_one_device_has_no_memory_for_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "_free", lambda device: 1000)
    with pytest.raises(UsageError, match=r"the whole batch of 8 rows in float32.*fewer rows"):
        parity.verify(plan_of(replace(WORDS, precision="float32")), 1)


@pytest.mark.parametrize("precision", ["float64", "float32"])
def test_what_no_precision_can_do_is_said_without_advice_of_another(precision: Precision) -> None:
    plan = plan_of(Case(model="examples.models:tiny_gpt2", precision=precision))
    batch = {name: one + 10_000 for name, one in tracer.random_batch(plan.graph, plan.rows, 0).items()}
    with pytest.raises(UsageError, match=f"one device cannot do a step of the model in {precision}: index") as told:
        parity.verify(plan, 1, batches=[batch])
    assert "--precision" not in str(told.value)


def test_the_report_says_what_was_compared_and_what_was_handed_over() -> None:
    report = on_ranks(2, verify_ranks.one, plan_of(replace(DROPPING, replicas=2)))[0]
    (compared,) = report.compared
    assert compared.startswith("3 steps in float64: the loss, 25 gradients, their norm before clipping, 25 weights")
    assert "the whole batch at once on one device" in compared
    assert any("masks of dropout" in note for note in report.notes)


def test_only_what_changes_the_mathematics_is_accepted_as_different() -> None:
    assert accepted_differences(plan_of(replace(WORDS, replicas=2))) == ()
    assert accepted_differences(plan_of(replace(IMAGES, microbatches=(8,)))) == ()
    (told,) = accepted_differences(plan_of(replace(IMAGES, replicas=2)))
    assert "3 microbatches x 2 replicas" in told


def test_without_dropout_torch_is_called_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    def entered(*given: object) -> None:
        raise AssertionError("a mode was entered")

    monkeypatch.setattr(MaskedDropout, "__enter__", entered)
    monkeypatch.setattr(PiecewiseNorms, "__enter__", entered)
    plan = plan_of(replace(WORDS, microbatches=(8,)))
    assert parity.verify(plan, 1, capture=capture_of(plan)).passed


def test_attention_by_a_mask_is_torchs_attention_where_the_mask_keeps_all() -> None:
    class Attending(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(()))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            attend: Callable[..., torch.Tensor] = functional.scaled_dot_product_attention
            return (attend(x, x, x * self.weight, dropout_p=0.5, is_causal=True) * x).mean()

    class All:
        count = 1

        def mask(self, step: int, call: int, shape: tuple[int, ...], probability: float) -> torch.Tensor:
            return torch.ones(shape, dtype=torch.bool)

    x = torch.randn(2, 2, 5, 4, dtype=torch.float64)
    run = EagerRun(Attending().double(), RunSettings(precision="float64"), masks=All())
    expected = (functional.scaled_dot_product_attention(x, x, x, is_causal=True) * x).mean() / 0.5
    assert run.backward({"x": x}) == pytest.approx(float(expected), rel=1e-12)


class Checkpointed(nn.Module):
    """Drops in a part that runs again in backward where `again` says how."""

    def __init__(self, *, again: bool | None) -> None:
        super().__init__()
        self.again, self.first, self.last = again, nn.Linear(4, 4), nn.Linear(4, 4)
        self.part = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.3), nn.Linear(4, 4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        values = self.first(x)
        made = self.part(values) if self.again is None else checkpoint(self.part, values, use_reentrant=self.again)
        loss: torch.Tensor = self.last(made).square().mean()
        return loss


@pytest.mark.parametrize("reentrant", [False, True])
def test_what_runs_again_in_backward_is_handed_the_masks_of_the_first_time(reentrant: bool) -> None:
    plain = Checkpointed(again=None).double()
    other = Checkpointed(again=reentrant).double()
    other.load_state_dict(plain.state_dict())
    masks, batch = KeyedMasks(seed=3, rows=8, dims=(0,)), {"x": torch.randn(8, 4, dtype=torch.float64)}
    runs = [EagerRun(model, RunSettings(precision="float64"), masks=masks) for model in (plain, other)]
    assert runs[0].backward(batch) == runs[1].backward(batch)
    expected, found = (run.gradients() for run in runs)
    assert all(expected[name].equal(found[name]) for name in expected) and len(found) == 8


class _WritesInput(nn.Module):
    """Halves what it is given where it lies."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.layer(x.mul_(0.5)).mean()
        return found


def test_a_forward_that_writes_into_its_inputs_has_those_of_the_batch_again() -> None:
    model, batch = _WritesInput(), {"x": torch.ones(2, 4)}
    EagerRun(model, RunSettings()).step(batch)
    assert torch.equal(batch["x"], torch.ones(2, 4))
