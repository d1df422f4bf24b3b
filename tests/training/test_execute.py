"""The training loop on two ranks: parity with one device, resuming, evaluation, the log, the measured ledger, NaN."""

from __future__ import annotations

import io
import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from rich.console import Console

from execute_plans import tiny_plan
from execute_runs import CLIPPING, RELAXED, SAVED_AT, SHARDINGS, STEPS
from placer.cli.commands.running.execute import run_document, run_view
from placer.costs.step_estimate import estimate
from placer.errors import UsageError
from placer.plans.plan import Sharding
from placer.program.instructions import Message
from placer.program.lowering import lower
from placer.runtime.checkpoint.folder import latest, read_marker
from placer.runtime.data import open_data
from placer.runtime.distributed.launch import launch_module
from placer.runtime.training.execute import execute, require_outputs
from placer.runtime.training.run_report import ExecuteOptions, LearningRate, RunReport

SECONDS = 1800.0


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("runs")
    launch_module(("execute_runs", str(folder)), 2, SECONDS)
    yield folder
    shutil.rmtree(folder)


def report(runs: Path, name: str) -> RunReport:
    return RunReport.load(runs / f"{name}.json")


@pytest.mark.in_turns
def test_the_losses_are_those_of_one_device(runs: Path) -> None:
    found = report(runs, "whole")
    assert len(found.losses) == len(found.one_device_losses) == STEPS
    assert found.one_device_losses == pytest.approx(found.losses, rel=1e-5)
    assert found.one_device_difference is not None and found.one_device_difference < 1e-5
    held_out = [entry.loss for entry in found.evaluations]
    assert held_out == sorted(held_out, reverse=True)


def test_the_log_has_every_step_with_its_learning_rate_and_the_evaluations(runs: Path) -> None:
    lines = [json.loads(line) for line in (runs / "log.jsonl").read_text().splitlines()]
    steps = [line for line in lines if line["event"] == "step"]
    rate = LearningRate(peak=1e-3, steps=STEPS, decay="cosine", warmup_steps=2)
    assert [line["learning_rate"] for line in steps] == [rate.at(step) for step in range(STEPS)]
    assert [line["step"] for line in lines if line["event"] == "evaluation"] == [2, 4, 6]
    assert all(line["tokens_per_second"] == pytest.approx(line["rows_per_second"] * 8) for line in steps)
    assert all(0 < line["mfu"] < 1 for line in steps)


def test_the_measured_ledger_adds_up_and_knows_what_was_sent(runs: Path) -> None:
    found, plan = report(runs, "whole"), tiny_plan(2, 2)
    assert found.measured is not None
    assert found.measured.seconds.total == pytest.approx(found.measured.step_seconds)
    assert found.measured.seconds.forward > 0 and found.measured.seconds.backward > 0
    held = [sum(plan.graph.parameters[n].bytes for n in names) for names in stage_parameters()]
    assert [memory.parameters for memory in found.measured.memory] == held
    assert [memory.gradients for memory in found.measured.memory] == held
    assert all(memory.activations > 0 and memory.optimizer >= 2 * memory.parameters for memory in found.measured.memory)
    sent = sum(e.bytes for p in lower(plan) for e in p.instructions if isinstance(e, Message) and e.direction == "send")
    assert found.measured.sent_bytes == sent


@pytest.mark.parametrize("sharding", SHARDINGS)
def test_of_sharded_state_what_is_predicted_is_measured(sharding: Sharding, runs: Path) -> None:
    found = report(runs, sharding).measured
    assert found is not None
    (measured,), (predicted,) = found.memory, estimate(tiny_plan(2, 1, sharding=sharding)).memory
    assert (measured.parameters, measured.gradients) == (predicted.parameters, predicted.gradients)
    assert measured.activations == pytest.approx(predicted.activations, rel=0.05)
    # Each parameter has a count of its steps beside the moments.
    assert measured.optimizer == pytest.approx(predicted.optimizer, rel=0.05)
    assert (measured.communication > 0) == (sharding == "parameters")


def stage_parameters() -> list[set[str]]:
    plan = tiny_plan(2, 2)
    return [{n for b in plan.graph.blocks[s.first : s.last] for n in b.parameters} for s in plan.stages]


def test_a_resumed_run_equals_an_undisturbed_one_bit_for_bit(runs: Path) -> None:
    whole, half, rest = (report(runs, name) for name in ("undisturbed", "first half", "second half, pipeline"))
    assert rest.first_step == SAVED_AT
    assert half.losses + rest.losses == whole.losses


@pytest.mark.in_turns
@pytest.mark.parametrize("layout", ["data", "sharded", "compiled"])
def test_a_run_goes_on_under_another_plan(layout: str, runs: Path) -> None:
    whole, rest = report(runs, "undisturbed"), report(runs, f"second half, {layout}")
    assert rest.first_step == SAVED_AT
    assert rest.losses == pytest.approx(whole.losses[SAVED_AT:], rel=1e-5)


@pytest.mark.parametrize("name", RELAXED)
def test_replicas_that_keep_together_less_strictly_resume_bit_for_bit(name: str, runs: Path) -> None:
    whole, half, rest = (report(runs, f"{name}, {part}") for part in ("undisturbed", "first half", "second half"))
    assert rest.first_step == SAVED_AT
    assert half.losses + rest.losses == whole.losses


@pytest.mark.parametrize("name", RELAXED)
def test_only_the_first_loss_of_less_strict_replicas_is_that_of_the_synchronous_run(name: str, runs: Path) -> None:
    ours, synchronous = report(runs, f"{name}, undisturbed").losses, report(runs, "undisturbed").losses
    assert ours[0] == pytest.approx(synchronous[0], rel=1e-6)
    assert abs(ours[-1] - synchronous[-1]) > 1e-5 * synchronous[-1]


@pytest.mark.parametrize("name", RELAXED)
def test_report_log_and_summary_say_that_the_mathematics_is_another(name: str, runs: Path) -> None:
    found = report(runs, f"{name}, undisturbed")
    first = json.loads((runs / f"{name}.jsonl").read_text().splitlines()[0])
    shown = io.StringIO()
    Console(file=shown, width=200).print(run_view(found))
    for text in (str(found.synchrony), first["synchrony"], str(run_document(found)["synchrony"]), shown.getvalue()):
        assert f"synchrony {name}" in text
        assert "changes the mathematics: losses are not those of one device" in text


@pytest.mark.parametrize("name", RELAXED)
def test_a_plan_without_replicas_is_refused_on_every_rank(name: str, runs: Path) -> None:
    for rank in range(2):
        kind, message = json.loads((runs / f"{name}, refused.rank{rank}.error").read_text())
        assert kind == "UsageError" and "stage 0 has one replica" in message


@pytest.mark.parametrize("name", RELAXED)
def test_a_spoilt_loss_ends_every_rank_though_gradients_travel(name: str, runs: Path) -> None:
    for rank in range(2):
        kind, message = json.loads((runs / f"{name}, spoilt.rank{rank}.error").read_text())
        assert kind == "ExecutionError" and "; the weights are spoilt" in message


def test_a_loss_that_is_no_number_ends_every_rank_and_is_not_saved(runs: Path) -> None:
    for rank in range(2):
        kind, message = json.loads((runs / f"spoilt.rank{rank}.error").read_text())
        assert kind == "ExecutionError" and "; the weights are spoilt" in message
    found = latest(runs / "c")
    assert found is not None and found.name == "step-00000001"


def test_where_nothing_was_updated_no_learning_rate_is_blamed_for_a_loss_that_is_no_number(runs: Path) -> None:
    for rank in range(2):
        kind, message = json.loads((runs / f"begun spoilt.rank{rank}.error").read_text())
        assert kind == "ExecutionError" and "nothing was updated yet in this run" in message
        assert f"(--weights {runs / 'no numbers'}) or of that batch (data text" in message
        assert "learning rate" not in message


def test_a_checkpoint_says_what_the_order_of_the_data_follows_from(runs: Path) -> None:
    found = latest(runs / "a")
    assert found is not None
    marker = read_marker(found)
    data = open_data("stdlib", tiny_plan(2, 2).graph, rows=marker.rows or 0, seed=0)
    assert (marker.seed, marker.samples) == (0, data.samples) and data.samples


@pytest.mark.parametrize("kind", ["checkpoint", "weights"])
@pytest.mark.parametrize("name", CLIPPING)
def test_weights_that_are_no_numbers_though_the_loss_is_end_every_rank_and_are_not_saved(
    name: str, kind: str, runs: Path
) -> None:
    said = {"clipped": "the gradients' norm of step 1 is nan", "not clipped": "weights are not finite after step 1"}
    for rank in range(2):
        raised, message = json.loads((runs / f"{name}, {kind}.rank{rank}.error").read_text())
        assert raised == "ExecutionError" and message.startswith(said[name])
    assert not list((runs / f"{name}, {kind}").glob("*"))


def test_outside_torchrun_the_error_gives_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RANK", raising=False)
    with pytest.raises(UsageError, match=r"torchrun --nproc-per-node 2 --no-python placer execute here\.json"):
        execute(tiny_plan(2, 2), ExecuteOptions(plan_path="here.json"))


def test_options_that_make_no_sense_are_refused() -> None:
    with pytest.raises(UsageError, match="give at least 1"):
        ExecuteOptions(steps=0)
    with pytest.raises(UsageError, match="needs a folder"):
        ExecuteOptions(checkpoint_every=5)
    for seconds in (0.0, -1.0, float("nan"), float("inf"), 1e10):
        with pytest.raises(UsageError, match="timeout"):
            ExecuteOptions(timeout_seconds=seconds)
    for seed in (-(2**63) - 1, 2**64):
        with pytest.raises(UsageError, match=f"the seed is {seed}; give one from -9223372036854775808 to"):
            ExecuteOptions(seed=seed)


def test_the_folder_that_a_run_starts_in_is_refused_for_its_weights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in (".", str(tmp_path), "./"):
        with pytest.raises(UsageError, match="the folder this command runs in, which weights cannot replace"):
            require_outputs(ExecuteOptions(save_weights=name))
    require_outputs(ExecuteOptions(save_weights="new"))
