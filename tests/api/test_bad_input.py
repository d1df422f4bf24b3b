"""Each mistake gets one clear error: what was asked, what was found, what to do; exit 2, or 1 where nothing fits."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from commands import CLUSTER, HERE, Command, command_in, plan_in, write_changed
from graphs import gpt_graph
from placer.errors import UsageError
from placer.plans.plan import SCHEMA_VERSION, Plan
from placer.search.asked import parse_pins

pytestmark = pytest.mark.in_turns


@pytest.fixture
def placer(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Command:
    """Run a command in this process, in an empty folder that sees the test models."""
    return command_in(tmp_path, monkeypatch, capsys)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Plan:
    """A plan of the tiny model as two replicas."""
    return plan_in(tmp_path_factory.mktemp("made"))


# --- the model


def test_a_model_that_cannot_be_exported_names_the_source_line(placer: Command) -> None:
    ended = placer("plan", "bad_models:branches", "--cluster", "small.yaml", "--batch", "x=8x4")
    line = (
        (HERE / "bad_models.py")
        .read_text()
        .split("\n")
        .index("        if y.sum() > 0:  # the line the error must name")
    )
    assert ended.code == 2
    assert re.search(rf"bad_models\.py\D{{1,9}}{line + 1}\b", ended.error), ended.error


@pytest.mark.parametrize(
    ("model", "said"),
    [
        ("bad_models", "package.module:factory"),
        ("bad_models:nothing", "nothing"),
        ("no_such_package:build", "no_such_package"),
        ("bad_models:not_a_model", "str"),
        ("nowhere/config.json", "nowhere/config.json"),
    ],
)
def test_a_model_that_is_none_is_named(placer: Command, model: str, said: str) -> None:
    ended = placer("plan", model, "--cluster", "small.yaml", "--batch", "8x32")
    assert ended.code == 2
    assert said in ended.error


def test_a_model_that_implies_no_batch_says_how_to_give_one(placer: Command) -> None:
    ended = placer("plan", "bad_models:plain", "--cluster", "small.yaml")
    assert ended.code == 2
    assert "batch" in ended.error


# --- the batch


def test_a_batch_that_does_not_divide_into_the_pinned_microbatches(placer: Command) -> None:
    ended = placer("plan", "bad_models:tiny", "--cluster", "small.yaml", "--batch", "8x32", "--pin", "microbatches=16")
    assert ended.code in (1, 2)
    assert "8" in ended.error and "16" in ended.error


def test_a_batch_of_fewer_rows_than_replicas_is_refused(placer: Command) -> None:
    ended = placer("plan", "bad_models:tiny", "--cluster", "small.yaml", "--batch", "1x32", "--pin", "data=2")
    assert ended.code in (1, 2)
    assert "row" in ended.error


@pytest.mark.parametrize("batch", ["8by32", "0x32", "-1x32", "x=8x32", "input_ids=axb"])
def test_a_batch_that_is_none_says_how_to_write_one(placer: Command, batch: str) -> None:
    ended = placer("plan", "bad_models:tiny", "--cluster", "small.yaml", f"--batch={batch}")
    assert ended.code == 2
    assert ended.error.startswith("placer: ")


# --- the cluster


@pytest.mark.parametrize(
    ("wrong", "right", "said"),
    [
        ("2 GB/s", "2 parsecs", "line 13"),
        ("memory: 2 GiB", "memory: 2 GiBs", "line 5"),
        ("    launch: 5 us\n", "", "launch"),
        ("count: 2", "count: 0", "line 12"),
        ("kind: chip", "kind: ship", "line 12"),
        ("name: small", "name: [small", "line"),
    ],
)
def test_a_wrong_cluster_file_names_the_line(placer: Command, wrong: str, right: str, said: str) -> None:
    Path("wrong.yaml").write_text(CLUSTER.replace(wrong, right))
    ended = placer("plan", "bad_models:tiny", "--cluster", "wrong.yaml", "--batch", "8x32")
    assert ended.code == 2
    assert "wrong.yaml" in ended.error
    assert said in ended.error
    assert "line" in ended.error


@pytest.mark.parametrize("spec", ["localx0", "h100x0", "h100x8*0"])
def test_zero_devices_are_refused(placer: Command, spec: str) -> None:
    ended = placer("plan", "bad_models:tiny", "--cluster", spec, "--batch", "8x32")
    assert ended.code == 2
    assert re.search("zero|0|at least one", ended.error)


@pytest.mark.parametrize("spec", ["nowhere.yaml", "h1000x8"])
def test_a_cluster_that_is_none_is_named(placer: Command, spec: str) -> None:
    ended = placer("plan", "bad_models:tiny", "--cluster", spec, "--batch", "8x32")
    assert ended.code == 2
    assert spec.removesuffix("x8") in ended.error


# --- choices


@pytest.mark.parametrize(
    ("pin", "said"),
    [
        ("pipeline", "NAME=VALUE"),
        ("tensors=2", "pipeline"),
        ("pipeline=two", "whole number"),
        ("pipeline=0", "at least 1"),
        ("schedule=2f2b", "1f1b"),
        ("shard=all", "parameters"),
        ("recompute=maybe", "yes"),
        ("no.such.block@stage=1", "no block"),
    ],
)
def test_a_pin_that_is_none_says_what_may_be_pinned(pin: str, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        parse_pins((pin,), gpt_graph())


def test_more_pinned_stages_than_devices_is_infeasible(placer: Command) -> None:
    ended = placer("plan", "bad_models:tiny", "--cluster", "small.yaml", "--batch", "8x32", "--pin", "pipeline=3")
    assert ended.code in (1, 2)
    assert "3" in ended.error and "2" in ended.error


def test_an_unknown_strategy_lists_the_known(placer: Command) -> None:
    ended = placer("plan", "bad_models:tiny", "--cluster", "small.yaml", "--batch", "8x32", "--strategy", "magic")
    assert ended.code == 2
    assert "stages" in ended.error


def test_a_model_that_fits_nowhere_says_what_binds_and_by_how_much(placer: Command) -> None:
    Path("tight.yaml").write_text(CLUSTER.replace("memory: 2 GiB", "memory: 1 MiB"))
    ended = placer("plan", "bad_models:wider", "--cluster", "tight.yaml", "--batch", "8x32")
    assert ended.code == 1
    assert "memory" in ended.error
    assert "MiB too much" in ended.error


def test_what_fits_nowhere_is_a_document_under_json(placer: Command) -> None:
    Path("tight.yaml").write_text(CLUSTER.replace("memory: 2 GiB", "memory: 1 MiB"))
    ended = placer("plan", "bad_models:wider", "--cluster", "tight.yaml", "--batch", "8x32", "--json")
    assert json.loads(ended.out)["error"] == "InfeasibleError"


# --- the plan


def test_a_file_that_is_no_plan(placer: Command) -> None:
    Path("plan.json").write_text("{}")
    assert "placer plan" in placer("explain", "plan.json").error
    Path("plan.json").write_text("not json")
    assert placer("explain", "plan.json").code == 2


def test_a_plan_of_another_schema_version(placer: Command, made: Plan) -> None:
    write_changed(made, schema_version=SCHEMA_VERSION + 1)
    ended = placer("explain", "plan.json")
    assert ended.code == 2
    assert f"schema version {SCHEMA_VERSION + 1}" in ended.error
    write_changed(made, schema_version="2" * 100_000)
    ended = placer("explain", "plan.json")
    assert (ended.code, len(ended.error) < 1_000) == (2, True)


def test_a_plan_with_a_field_of_a_wrong_type_names_the_field(placer: Command, made: Plan) -> None:
    write_changed(made, microbatches="all")
    ended = placer("explain", "plan.json")
    assert ended.code == 2
    assert "microbatches" in ended.error


def test_an_illegal_plan_names_every_broken_rule(placer: Command, made: Plan) -> None:
    replace(made, stages=(replace(made.stages[0], first=1, devices=(7,)),)).save("plan.json")
    ended = placer("explain", "plan.json")
    assert ended.code == 2 == placer("simulate", "plan.json").code
    assert len(re.findall("breaks a rule", ended.out)) >= 2


def test_a_plan_for_another_model_is_refused_with_what_changed(
    placer: Command, made: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    import bad_models

    made.save("plan.json")
    monkeypatch.setattr(bad_models, "tiny", bad_models.wider)
    ended = placer("verify", "plan.json", "--steps", "1")
    assert ended.code == 2
    assert "model" in ended.error


def test_a_plan_for_another_cluster_is_refused_with_what_changed(placer: Command, made: Plan) -> None:
    made.save("plan.json")
    assert placer("explain", "plan.json", "--cluster", "small.yaml").code == 0
    Path("small.yaml").write_text(CLUSTER.replace("2 GB/s", "1 GB/s"))
    ended = placer("explain", "plan.json", "--cluster", "small.yaml")
    assert ended.code == 2
    assert "cluster" in ended.error


def test_a_plan_of_another_version_of_torch_is_refused_with_both(placer: Command, made: Plan) -> None:
    older = tuple((name, "2.1.0" if name == "torch" else version) for name, version in made.versions)
    replace(made, versions=older).save("plan.json")
    ended = placer("verify", "plan.json")
    assert ended.code == 2
    assert "torch (2.1.0 in the plan" in ended.error


def test_executing_without_torchrun_says_how(placer: Command, made: Plan) -> None:
    made.save("plan.json")
    ended = placer("execute", "plan.json")
    assert ended.code == 2
    assert "torchrun --nproc-per-node 2" in ended.error


@pytest.mark.parametrize(("ranks", "said"), [("1", "fewer"), ("3", "more")])
def test_more_or_fewer_ranks_than_the_plan_wants(
    placer: Command, made: Plan, monkeypatch: pytest.MonkeyPatch, ranks: str, said: str
) -> None:
    made.save("plan.json")
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", ranks)
    ended = placer("execute", "plan.json")
    assert ended.code == 2
    assert "wants 2 ranks" in ended.error
    assert f"torchrun started {ranks}" in ended.error
    assert said in ended.error


def test_every_rank_leaves_its_error_to_torchrun(
    placer: Command, made: Plan, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    made.save("plan.json")
    left = tmp_path / "error.json"
    for name, value in {"RANK": "1", "WORLD_SIZE": "3", "TORCHELASTIC_ERROR_FILE": str(left)}.items():
        monkeypatch.setenv(name, value)
    assert placer("execute", "plan.json").code == 2
    told = json.loads(left.read_text())["message"]
    assert "wants 2 ranks, torchrun started 3" in told["message"]
    # torchrun prints the second of them, and asks when it was.
    assert told["extraInfo"]["py_callstack"] == told["message"] and int(told["extraInfo"]["timestamp"]) > 0


def test_an_output_folder_that_is_missing(placer: Command) -> None:
    ended = placer("plan", "bad_models:tiny", "--cluster", "small.yaml", "--batch", "8x32", "-o", "nowhere/plan.json")
    assert ended.code == 2
    assert "nowhere" in ended.error
