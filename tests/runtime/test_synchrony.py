"""Local SGD and delayed gradients: on ranks as by hand in one process, at their limits the synchronous step."""

from __future__ import annotations

from dataclasses import replace

import pytest

import synchrony_ranks as ranks
from examples.parity import models as parity_models
from examples.parity.cases import Case, plan_of
from opaque_models import WIDTH
from placer.errors import UsageError
from placer.plans.plan import Plan
from placer.plans.settings import RunSettings
from placer.runtime.data_parallel.synchrony import SYNCHRONOUS, Synchrony, require_replicas
from placer.runtime.training.run_report import ExecuteOptions
from pool import on_ranks

pytestmark = pytest.mark.in_turns

WORDS = Case(model="examples.parity.models:words", shapes=parity_models.TEXT)
REPLICAS = replace(WORDS, replicas=2)
UNEQUAL = replace(WORDS, replicas=2, shares=(3, 1), microbatches=(4, 4))
PIPELINES = replace(WORDS, positions=2, replicas=2)  # its embedding is tied across the stages
TURNS = replace(WORDS, positions=2, replicas=2, schedule="interleaved", turns=2, microbatches=(4, 4))
STEPS = 7
SGD = RunSettings(
    precision="float64", optimizer="sgd", learning_rate=0.1, momentum=0.9, weight_decay=0.01, clip_norm=None
)
ADAMW = RunSettings(precision="float64", learning_rate=1e-2, clip_norm=0.5)


def plan(case: Case, settings: RunSettings) -> Plan:
    return replace(plan_of(case), settings=settings, bucket_bytes=1000)


def local(every: int) -> Synchrony:
    return Synchrony(kind="local", average_every=every)


def stale(steps: int) -> Synchrony:
    return Synchrony(kind="stale", staleness=steps)


def found(case: Case, settings: RunSettings, synchrony: Synchrony, read_at: int = 0) -> ranks.Outcome:
    outcomes = on_ranks(case.ranks, ranks.trained, plan(case, settings), synchrony, STEPS, read_at)
    assert all(other.losses == outcomes[0].losses for other in outcomes)
    return outcomes[0]


def require_equal(ours: ranks.Outcome, theirs: ranks.Outcome) -> None:
    assert ours.losses == pytest.approx(theirs.losses, rel=1e-9)
    assert set(ours.state) == set(theirs.state)
    for name, tensor in theirs.state.items():
        assert float((ours.state[name] - tensor).abs().max()) <= 1e-9 * float(tensor.abs().max()), name


@pytest.mark.parametrize("case", [REPLICAS, UNEQUAL, PIPELINES], ids=str)
def test_averaging_after_every_step_of_sgd_is_the_synchronous_step(case: Case) -> None:
    require_equal(found(case, SGD, local(1)), found(case, SGD, SYNCHRONOUS))


@pytest.mark.parametrize("case", [REPLICAS, UNEQUAL, PIPELINES, TURNS], ids=str)
@pytest.mark.parametrize("settings", [SGD, ADAMW], ids=["sgd", "adamw, clipped"])
def test_local_sgd_is_that_of_one_process_with_a_model_per_replica(case: Case, settings: RunSettings) -> None:
    ours = found(case, settings, local(3), read_at=5)
    require_equal(ours, ranks.by_hand_local(plan(case, settings), 3, STEPS, read_at=5))


def test_local_sgd_changes_the_mathematics() -> None:
    ours, synchronous = found(REPLICAS, SGD, local(3)), found(REPLICAS, SGD, SYNCHRONOUS)
    assert ours.losses[0] == pytest.approx(synchronous.losses[0], rel=1e-12)
    assert abs(ours.losses[-1] - synchronous.losses[-1]) > 1e-6 * synchronous.losses[-1]


@pytest.mark.parametrize("case", [REPLICAS, UNEQUAL, PIPELINES], ids=str)
@pytest.mark.parametrize("settings", [SGD, ADAMW], ids=["sgd", "adamw, clipped"])
def test_gradients_that_are_not_late_give_the_synchronous_step(case: Case, settings: RunSettings) -> None:
    require_equal(found(case, settings, stale(0)), found(case, settings, SYNCHRONOUS))


@pytest.mark.parametrize("case", [REPLICAS, UNEQUAL, PIPELINES, TURNS], ids=str)
@pytest.mark.parametrize("settings", [SGD, ADAMW], ids=["sgd", "adamw, clipped"])
def test_late_gradients_are_those_of_one_process_that_keeps_them_in_a_list(case: Case, settings: RunSettings) -> None:
    ours = found(case, settings, stale(2), read_at=4)
    require_equal(ours, ranks.by_hand_stale(plan(case, settings), 2, STEPS, read_at=4))


def test_late_gradients_do_the_same_in_every_run() -> None:
    first, second = (found(PIPELINES, ADAMW, stale(2)) for _ in range(2))
    assert first.losses == second.losses
    assert all(tensor.equal(second.state[name]) for name, tensor in first.state.items())


@pytest.mark.parametrize(
    ("case", "reason"),
    [
        (WORDS, "stage 0 has one replica"),
        (replace(WORDS, replicas=2, sharding="parameters"), "shards its parameters"),
        (replace(WORDS, replicas=2, sharding="gradients"), "shards its gradients"),
        (replace(WORDS, replicas=2, microbatches=(1,) * 8), "replica 1 has no rows"),
        (Case(model="opaque_models:routed", shapes=(("x", (8, WIDTH)),), replicas=2), "has opaque parts"),
    ],
    ids=str,
)
def test_plans_whose_replicas_cannot_step_alone_are_refused_with_the_reason(case: Case, reason: str) -> None:
    with pytest.raises(UsageError, match=reason):
        require_replicas(plan_of(case), local(2))


def test_numbers_that_are_missing_wrong_or_of_another_kind_are_refused() -> None:
    with pytest.raises(UsageError, match=r"--synchrony local needs --average-every .* none was given"):
        ExecuteOptions(synchrony="local")
    with pytest.raises(UsageError, match="from 1 on, 0 was given"):
        local(0)
    with pytest.raises(UsageError, match="--synchrony stale needs --staleness"):
        ExecuteOptions(synchrony="stale")
    with pytest.raises(UsageError, match="does not read it"):
        ExecuteOptions(average_every=4)
    with pytest.raises(UsageError, match="does not read it"):
        ExecuteOptions(synchrony="local", average_every=4, staleness=1)


@pytest.mark.parametrize("options", [{"one_device": True}, {"engine": "deepspeed"}], ids=str)
def test_what_needs_the_mathematics_of_one_device_is_refused(options: dict[str, object]) -> None:
    with pytest.raises(UsageError, match="synchrony"):
        ExecuteOptions(synchrony="stale", staleness=1, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("case", [REPLICAS, UNEQUAL, PIPELINES], ids=str)
def test_a_replica_that_tells_its_own_loss_tells_that_of_its_rows(case: Case) -> None:
    made = plan(case, SGD)
    outcomes = on_ranks(case.ranks, ranks.trained, made, replace(local(3), own_loss=True), STEPS)
    ours, losses = ranks.averaged_by_hand(made, 3, STEPS)
    for rank, outcome in enumerate(outcomes):
        require_equal(outcome, replace(ours, losses=losses[rank % made.stages[0].replicas]))


@pytest.mark.parametrize("synchrony", [local(3), stale(2)], ids=str)
def test_telling_ones_own_loss_changes_no_weights_and_no_evaluation(synchrony: Synchrony) -> None:
    made = plan(UNEQUAL, ADAMW)
    together, own = (
        on_ranks(UNEQUAL.ranks, ranks.evaluated, made, each, STEPS)
        for each in (synchrony, replace(synchrony, own_loss=True))
    )
    assert own == together and len(set(own)) == 1


def test_ones_own_loss_is_refused_where_replicas_wait_anyway() -> None:
    with pytest.raises(UsageError, match="--own-loss was given with --synchrony synchronous"):
        ExecuteOptions(own_loss=True)
    with pytest.raises(UsageError, match="replica 1 has no rows"):
        require_replicas(plan_of(replace(WORDS, replicas=2, microbatches=(1,) * 8)), replace(stale(1), own_loss=True))


def test_a_state_that_is_saved_early_counts_the_updates_that_were_made() -> None:
    """Before the first update too, which travels still: reading the state makes it."""
    assert on_ranks(2, ranks.steps_of_a_saved_state, plan(REPLICAS, ADAMW), stale(2)) == [[1.0, 2.0]] * 2
