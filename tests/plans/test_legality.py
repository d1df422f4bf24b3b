"""One judge: a legal plan breaks no rule, and every rule is broken by a plan made for it, with a message that helps."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest

import placer
from clusters import SLOW, cluster, with_host
from graphs import BlockSpec, chain_graph
from mixed_plans import machines
from pipeline_plans import chain, changed_stage, pipeline_plan
from placer.errors import IllegalPlanError, InfeasibleError
from placer.graph import Affine
from placer.legality import FULL_TURNS, RULES, check, require
from placer.plans.plan import Layout, Plan
from placer.plans.schedule import actions
from placer.plans.settings import RunSettings
from placer.program.agreement import agreement
from placer.program.lowering import lower


def plan(**how: object) -> Plan:
    return pipeline_plan(chain(), **{"positions": 2, "replicas": 2, "microbatches": 4, **how})  # type: ignore[arg-type]


def small_memory() -> Plan:
    graph = chain_graph([BlockSpec(parameters=30_000_000)] * 4)
    tiny = replace(SLOW, memory_bytes=2**29)
    return pipeline_plan(graph, positions=2, machines=cluster(per_node=2, device=tiny))


def small_host() -> Plan:
    machines = with_host(cluster(per_node=4), memory_bytes=2**10)
    return plan(machines=machines, settings=RunSettings(offload="optimizer"))


def with_loss(reduction: str, **how: object) -> Plan:
    made = plan(**how)
    loss = replace(made.graph.loss, reduction=reduction, why="a balancing term")  # type: ignore[arg-type]
    return replace(made, graph=replace(made.graph, loss=loss))


def looped() -> Plan:
    return plan(turns=2, schedule="interleaved")


def with_values_of(shape: tuple[Affine, ...]) -> Plan:
    """Two replicas before one, with values of another shape between them."""
    made = changed_stage(plan(), 1, devices=(2,))
    kinds = [
        replace(kind, ops=tuple(replace(op, outputs=(replace(op.outputs[0], shape=shape),)) for op in kind.ops))
        for kind in made.graph.classes
    ]
    return replace(made, graph=replace(made.graph, classes=tuple(kinds)))


def one_value_for_all_rows() -> Plan:
    return with_values_of((Affine(3),))


def two_dims_of_rows() -> Plan:
    return with_values_of((Affine(0, 1), Affine(0, 1)))


BROKEN: list[tuple[str, Plan, str]] = [
    ("blocks", changed_stage(plan(), 1, first=5), "stage 1 begins at block 5, the stages before it end at block 4"),
    ("blocks", changed_stage(plan(), 1, last=7), "the stages end at block 7, the model has 8 blocks"),
    ("blocks", changed_stage(plan(), 0, last=0), "stage 0 has no block"),
    ("devices", changed_stage(plan(), 1, devices=(2, 9)), "wants device 9, the cluster made has 4"),
    ("devices", changed_stage(plan(), 1, devices=(1, 2)), "stage 1 shares device 1"),
    ("devices", changed_stage(plan(), 1, devices=(2, 2)), "names a device twice"),
    ("devices", changed_stage(plan(), 1, devices=()), "stage 1 has no device"),
    ("layouts", changed_stage(plan(), 1, degree=2), "no layout that says how to use them"),
    ("layouts", changed_stage(plan(), 1, layout=3), "wants layout 3, the plan has 0"),
    ("layouts", replace(plan(), layouts=(Layout(degree=2, splits=()),)), "splits 0 block classes"),
    ("replicas", changed_stage(looped(), 2, degree=2, layout=0), "0 and 2 share their devices and have replicas of 1"),
    (
        "kinds",
        plan(machines=machines(1, 3), sharding="parameters"),
        "shards parameters over replicas on GPUs and on CPUs",
    ),
    ("replicas", changed_stage(plan(), 1, shares=(1, 0)), "one positive share per replica"),
    ("replicas", changed_stage(looped(), 2, shares=(3, 1)), "0 and 2 share their devices and divide rows differently"),
    ("rows", replace(plan(), microbatches=()), "there is no microbatch"),
    ("rows", replace(plan(), microbatches=(4, 0)), "microbatch 1 has 0 rows"),
    ("rows", replace(plan(), microbatches=(1, 1)), "replica 1 of 2 has no row of any microbatch"),
    ("rows", changed_stage(plan(microbatches=(2, 2)), 1, devices=(2, 3, 4)), "replica 2 of 3 has no row"),
    ("meshes", one_value_for_all_rows(), "is one value for all rows"),
    ("meshes", two_dims_of_rows(), "has no one dim of rows"),
    ("schedule", plan(turns=2), "one stage per position"),
    ("sharding", plan(schedule="zero-bubble", sharding="parameters"), "which zero-bubble splits"),
    ("sharding", plan(replicas=1, sharding="gradients"), "over one device"),
    ("reductions", changed_stage(plan(), 1, reduction="server"), "for CPUs on several nodes; use reduction flat"),
    ("recompute", plan(settings=RunSettings(recompute="none"), recompute=True), "stages 0, 1 do otherwise"),
    ("loss", with_loss("none"), "returns no loss"),
    ("loss", with_loss("other"), "4 microbatches and 2 replicas"),
    ("memory", small_memory(), "GiB too much, mostly"),
    ("memory", small_host(), "memory of the host of node 0"),
]


@pytest.mark.parametrize(("rule", "made", "message"), BROKEN, ids=lambda value: value if isinstance(value, str) else "")
def test_a_broken_rule_is_named_with_what_was_found(rule: str, made: Plan, message: str) -> None:
    found = [violation for violation in check(made) if violation.rule == rule]
    assert any(message in violation.message for violation in found), check(made)


def test_every_rule_but_agreement_is_broken_by_some_plan_above() -> None:
    # No plan can make its own programs disagree: tests/plans/test_program.py plants mistakes in programs.
    assert {rule for rule, _, _ in BROKEN} == set(RULES) - {"communication"}


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b", "zero-bubble"])
def test_sound_plans_break_no_rule(schedule: str) -> None:
    made = plan(schedule=schedule)
    assert check(made) == ()
    require(made)


def test_interleaving_takes_any_number_of_microbatches() -> None:
    for microbatches in (1, 3, 5):
        assert check(plan(turns=2, schedule="interleaved", microbatches=microbatches)) == ()


def test_interleaved_stages_go_round_the_positions() -> None:
    made = plan(turns=2, schedule="interleaved")
    stages = list(made.stages)
    stages[2], stages[3] = (
        replace(stages[2], devices=stages[3].devices),
        replace(stages[3], devices=stages[2].devices),
    )
    assert [v.message for v in check(replace(made, stages=tuple(stages)))] == [
        "stage 2 is at position 1, interleaved wants it at 0",
        "stage 3 is at position 0, interleaved wants it at 1",
    ]


def test_a_loss_that_does_not_split_may_run_whole() -> None:
    assert check(with_loss("other", replicas=1, microbatches=1)) == ()


def test_a_parameter_may_be_tied_between_a_sharded_and_a_whole_stage() -> None:
    made = pipeline_plan(chain(tied=[(0, 7)]), positions=2, replicas=2, sharding="parameters")
    assert check(made) == ()
    assert check(changed_stage(made, 1, sharding="none")) == ()
    assert check(changed_stage(made, 1, sharding="none", devices=(2,))) == ()


def test_fsdp_shards_types_in_units_of_their_own() -> None:
    """A block of complex parameters beside blocks of real ones; not both in one block."""
    made = pipeline_plan(chain(), positions=1, replicas=2, sharding="parameters")
    first, *others = made.graph.classes
    (own,) = first.parameters
    for types, broken in ((("complex64",), 0), (("float32", "complex64"), 1)):
        kind = replace(first, parameters=tuple(replace(own, dtype=dtype) for dtype in types))
        names = tuple(f"own.{number}" for number in range(len(types)))
        blocks = [replace(one, parameters=names) if not one.kind else one for one in made.graph.blocks[:1]]
        graph = replace(made.graph, classes=(kind, *others), blocks=(*blocks, *made.graph.blocks[1:]))
        assert [one.rule for one in check(replace(made, graph=graph))] == ["sharding"] * broken


@pytest.mark.parametrize(("rule", "made", "message"), BROKEN)
def test_what_predicts_or_shows_an_illegal_plan_says_which_rule_it_breaks(rule: str, made: Plan, message: str) -> None:
    """A plan edited in a file or in Python: each of these ended in an error of our own code, or in numbers."""
    if rule == "memory":
        assert placer.simulate(made).ledger.step_seconds > 0 and "breaks a rule" not in str(made)
        return
    for predict in (placer.estimate, placer.simulate):
        with pytest.raises(IllegalPlanError, match=f"- {rule}: "):
            predict(made)
    assert f"breaks a rule: {rule}: " in " ".join(str(made).split())


def test_several_broken_rules_are_all_listed() -> None:
    made = replace(changed_stage(plan(), 1, first=5), microbatches=(0, 4))
    with pytest.raises(IllegalPlanError) as error:
        require(made)
    assert "blocks: stage 1" in str(error.value) and "rows: microbatch 0" in str(error.value)


def test_too_little_memory_is_infeasible_and_says_by_how_much() -> None:
    with pytest.raises(
        InfeasibleError, match=r"memory on device 0 and 1 like it: [\d.]+ GiB of 0.50 GiB, [\d.]+ GiB too much"
    ):
        require(small_memory())


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b", "zero-bubble"])
@pytest.mark.parametrize("microbatches", [(4, 4, 1), (1, 4, 1)])
def test_a_microbatch_may_leave_replicas_without_rows(schedule: str, microbatches: tuple[int, ...]) -> None:
    made = plan(schedule=schedule, microbatches=microbatches)
    assert check(made) == ()
    assert agreement(lower(made)) == ()


def test_unequal_shares_are_legal_where_every_replica_gets_a_row() -> None:
    made = plan(microbatches=(8, 8))
    uneven = replace(made, stages=tuple(replace(stage, shares=(3, 1)) for stage in made.stages))
    assert check(uneven) == ()
    starved = replace(uneven, stages=tuple(replace(stage, shares=(9, 1)) for stage in made.stages))
    assert "replica 1 of 2 has no row" in check(replace(starved, microbatches=(2, 2)))[0].message


def turns(schedule: str, positions: int, stages: int, microbatches: int) -> list[list[tuple[int, str]]]:
    """Stages and kinds of every position's actions in order: within each, microbatches only ascend."""
    return [
        [(action.stage, action.kind) for action in line] for line in actions(schedule, positions, stages, microbatches)
    ]


@pytest.mark.parametrize("positions", [1, 2, 3, 5])
@pytest.mark.parametrize(("schedule", "virtual"), [("1f1b", 1), ("zero-bubble", 1), ("interleaved", 2)])
def test_beyond_enough_microbatches_a_schedule_repeats_one_turn(schedule: str, virtual: int, positions: int) -> None:
    stages = positions * virtual
    enough, more = stages + FULL_TURNS * positions, positions if virtual > 1 else 1
    short = turns(schedule, positions, stages, enough)
    for further in (1, 2, 7):
        long = turns(schedule, positions, stages, enough + further * more)
        for line, longer in zip(short, long, strict=True):
            added, middle = (len(longer) - len(line)) // further, len(line) // 2
            turn = longer[middle : middle + added]
            assert longer == line[:middle] + turn * further + line[middle:]


@pytest.mark.parametrize("last", [2, 4])
@pytest.mark.parametrize(("schedule", "virtual"), [("gpipe", 1), ("1f1b", 1), ("zero-bubble", 1), ("interleaved", 2)])
def test_what_is_judged_by_some_microbatches_holds_for_all(schedule: str, virtual: int, last: int) -> None:
    made = plan(schedule=schedule, turns=virtual, microbatches=(4,) * 35 + (last,))
    assert check(made) == ()
    assert agreement(lower(made)) == ()


def test_a_plan_of_many_microbatches_is_checked_without_playing_all_of_them() -> None:
    made = pipeline_plan(chain(), positions=4, microbatches=(2,) * 100_000)
    started = time.process_time()
    assert check(made) == ()
    assert time.process_time() - started < 5
