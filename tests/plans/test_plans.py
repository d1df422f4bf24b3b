"""plan.json: the same after a round trip, byte for byte the same each time, valid under its published schema."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import jsonschema
import pytest

from clusters import FAST, cluster
from graphs import BlockSpec, chain_graph
from pipeline_plans import chain, pipeline_plan
from placer.costs.step_estimate import estimate
from placer.errors import StalePlanError, UsageError
from placer.plans.plan import SCHEMA_VERSION, Plan, plan_schema, replica_rows
from plans import two_stage_plan


def test_a_plan_is_the_same_after_a_round_trip(tmp_path: Path) -> None:
    plan = two_stage_plan()
    plan.save(tmp_path / "plan.json")
    assert Plan.load(tmp_path / "plan.json") == plan


def test_the_same_plan_gives_the_same_bytes() -> None:
    assert two_stage_plan().to_json() == two_stage_plan().to_json()


@pytest.mark.parametrize("plan", [two_stage_plan(), pipeline_plan(chain(skips=[(0, 5)], tied=[(0, 7)]), positions=2)])
def test_plans_are_valid_under_the_published_schema(plan: Plan) -> None:
    schema = plan_schema()
    jsonschema.Draft202012Validator.check_schema(schema)
    jsonschema.validate(json.loads(plan.to_json()), schema)


def test_the_schema_refuses_what_is_no_plan() -> None:
    document = json.loads(two_stage_plan().to_json())
    document["schedule"] = "chimera"
    errors = list(jsonschema.Draft202012Validator(plan_schema()).iter_errors(document))
    assert [error.message.split(" is ")[0] for error in errors] == ["'chimera'"]


def test_a_plan_read_back_is_estimated_alike() -> None:
    plan = pipeline_plan(chain(), positions=2, replicas=2, microbatches=4)
    assert estimate(Plan.from_json(plan.to_json())) == estimate(plan)


def test_a_plan_of_another_schema_version_is_stale_and_says_which() -> None:
    text = two_stage_plan().to_json().replace(f'"schema_version": {SCHEMA_VERSION}', '"schema_version": 99')
    with pytest.raises(StalePlanError, match=f"version 99, this placer reads {SCHEMA_VERSION}; plan again"):
        Plan.from_json(text)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"schema_version": null}'])
def test_what_is_no_plan_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="is not a plan"):
        Plan.from_json(text)


def test_a_wrong_field_is_named() -> None:
    document = json.loads(two_stage_plan().to_json())
    document["stages"][1]["first"] = "three"
    with pytest.raises(UsageError, match=r"stages\.1\.first"):
        Plan.from_json(json.dumps(document))


def test_a_plan_for_16384_devices_stays_below_5_mib() -> None:
    graph = chain_graph([BlockSpec()] * 128)
    plan = pipeline_plan(graph, positions=16, replicas=1024, machines=cluster(nodes=2048, device=FAST))
    assert len(plan.ranks) == 16 * 1024
    assert len(plan.to_json()) < 5 * 2**20


def test_rows_go_to_replicas_by_shares_with_remainders_to_the_largest() -> None:
    assert replica_rows(10, (), 4) == (3, 3, 2, 2)
    assert replica_rows(10, (3, 1), 2) == (8, 2)
    assert sum(replica_rows(7, (5, 2, 2), 3)) == 7


def test_ranks_are_devices_position_by_position() -> None:
    plan = pipeline_plan(chain(), positions=2, turns=2, replicas=2, schedule="interleaved", microbatches=2)
    assert plan.ranks == (0, 1, 2, 3)
    assert plan.positions == 2


def test_the_gap_is_never_negative() -> None:
    plan = two_stage_plan()
    assert replace(plan, bound=1e9).gap == 0.0
    assert replace(plan, bound=None).gap is None
