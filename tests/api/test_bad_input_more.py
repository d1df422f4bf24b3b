"""More mistakes, each with one clear error: in a person's own code, in names and shapes, in files to be written."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from pydantic import JsonValue

from commands import HERE, Command, command_in, plan_in
from placer.api import capture, estimate
from placer.plans.plan import Plan


@pytest.fixture
def placer(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Command:
    """Run a command in this process, in an empty folder that sees the test models."""
    return command_in(tmp_path, monkeypatch, capsys)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Plan:
    """A plan of the tiny model as two replicas."""
    return plan_in(tmp_path_factory.mktemp("made"))


def line_of(text: str) -> str:
    """`bad_models.py:N`, the line that holds `text`."""
    lines = (HERE / "bad_models.py").read_text().splitlines()
    return f"bad_models.py:{next(i for i, line in enumerate(lines, 1) if text in line)}"


# --- a person's own code


@pytest.mark.parametrize(
    ("model", "said"),
    [
        ("bad_models:raises", "ValueError: no weather data at "),
        ("bad_models:ends", "SystemExit"),
        ("bad_models:sized", "(width"),
        (":", "package.module:function"),
        (":build", "package.module:function"),
        ("tests/made/bad_models.py:tiny", "package.module:function"),
        ("", "no name"),
    ],
)
def test_a_factory_that_fails_is_misuse_and_says_how(placer: Command, model: str, said: str) -> None:
    ended = placer("plan", model, "--cluster", "small.yaml", "--batch", "x=8x64", "-o", "plan.json")
    assert ended.code == 2
    assert said in ended.error
    assert len(ended.error.splitlines()) == 1
    assert not Path("plan.json").exists()


def test_a_factory_that_raises_names_its_line(placer: Command) -> None:
    error = placer("plan", "bad_models:raises", "--cluster", "small.yaml").error
    assert line_of("# the factory's own line") in error


def test_a_syntax_error_in_the_models_file_names_the_line(placer: Command) -> None:
    Path("slips.py").write_text("def build(:\n    pass\n")
    ended = placer("plan", "slips:build", "--cluster", "small.yaml")
    assert ended.code == 2
    assert "SyntaxError" in ended.error and "slips.py:1 (def build(:)" in ended.error


def test_a_module_that_the_models_file_lacks_is_not_taken_for_the_file(placer: Command) -> None:
    Path("lacking.py").write_text("import no_such_library\n")
    error = placer("plan", "lacking:build", "--cluster", "small.yaml").error
    assert "no_such_library" in error and "lacking.py:1" in error and "on the path" not in error


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"model_type": "gpt2", "n_embd": 65, "n_head": 4}, "refused by transformers"),
        ({"model_type": "gpt2", "n_layer": "two"}, "refused by transformers"),
        ({"model_type": "gpt2", "n_layer": -1}, "n_layer is -1"),
        ({"model_type": "gpt22"}, "like it: gpt2"),
        ({"model_type": ["gpt2"]}, "no model_type ['gpt2']"),
    ],
)
def test_a_configuration_that_builds_no_model(placer: Command, fields: dict[str, object], said: str) -> None:
    Path("config.json").write_text(json.dumps(fields))
    ended = placer("plan", "config.json", "--cluster", "small.yaml", "--batch", "8x32")
    assert ended.code == 2
    assert said in ended.error
    assert len(ended.error) < 600


# --- the loss


def test_a_model_without_a_loss_is_told_of_the_flag(placer: Command) -> None:
    ended = placer("plan", "bad_models:dense", "--cluster", "small.yaml", "--batch", "x=8x64")
    assert ended.code == 2
    assert "--loss package.module:function" in ended.error


@pytest.mark.in_turns
@pytest.mark.parametrize(
    ("loss", "said"),
    [("many", "shape (3, 10)"), ("no_tensor", "a float"), ("looks_up", "KeyError: 'answers'"), ("absent", "absent")],
)
def test_a_loss_that_gives_no_number_says_what_it_gave(placer: Command, loss: str, said: str) -> None:
    ended = placer(
        "plan", "bad_models:dense", "--cluster", "small.yaml", "--batch", "x=8x64", "--loss", f"bad_models:{loss}"
    )
    assert ended.code == 2
    assert said in ended.error
    assert "torch.where" not in ended.error


@pytest.mark.parametrize("loss", ["torch.nn.functional:cross_entropy", "torch.nn:CrossEntropyLoss"])
def test_a_loss_of_torchs_own_is_told_how_it_is_called(placer: Command, loss: str) -> None:
    name = loss.split(":")[1]
    ended = placer("plan", "bad_models:dense", "--cluster", "small.yaml", "--batch", "x=8x64,y=8:int64", "--loss", loss)
    assert ended.code == 2
    assert f"{name} is called as {name}(output, batch)" in ended.error
    assert "def loss(output, batch)" in ended.error


def test_a_model_without_parameters_is_refused(placer: Command) -> None:
    ended = placer("plan", "bad_models:empty", "--cluster", "small.yaml", "--batch", "x=8x64")
    assert ended.code == 2
    assert "no parameters" in ended.error


# --- the batch


@pytest.mark.in_turns
@pytest.mark.parametrize(
    ("model", "batch", "said"),
    [
        ("dense", "z=8x64", "no input 'z'; it takes x"),
        ("dense", "8x64", "--batch x=8x64"),
        ("dense", "x=8x65", "3x65 float32"),
        ("dense", "x=99999999999999999999x64", "more than any memory holds"),
        ("dense", "x=4611686018427387904x64", "more than any memory holds"),
        ("dense", "x=8x64,x=8x64", "'x' twice"),
        ("dense", "x=8x64:int65", "int65"),
        ("dense", "x=8x64:", "y=8:int64"),
        ("raising", "x=8x64", "RuntimeError: the forward blew up"),
        ("tiny", "input_idz=8x32", "did you mean input_ids?"),
        ("tiny", "input_ids=8x32,labels=4x32", "8 rows in input_ids and 4 in labels"),
    ],
)
def test_a_batch_that_does_not_fit_the_model(placer: Command, model: str, batch: str, said: str) -> None:
    ended = placer("plan", f"bad_models:{model}", "--cluster", "small.yaml", "--batch", batch)
    assert ended.code == 2
    assert said in ended.error
    assert "torch.where" not in ended.error
    assert len(ended.error.splitlines()) == 1


def test_a_wrong_size_names_the_line_it_failed_at(placer: Command) -> None:
    ended = placer("plan", "bad_models:dense", "--cluster", "small.yaml", "--batch", "x=8x65")
    assert line_of("# the layer takes 64") in ended.error


@pytest.mark.in_turns
def test_a_branch_on_values_is_told_of_where(placer: Command) -> None:
    ended = placer("plan", "bad_models:branches", "--cluster", "small.yaml", "--batch", "x=8x4")
    assert "torch.where" in ended.error
    assert len(ended.error.splitlines()) == 1


def test_types_that_were_guessed_are_named_where_the_capture_fails(placer: Command) -> None:
    ended = placer("plan", "bad_models:labelled", "--cluster", "small.yaml", "--batch", "x=8x64,y=8x2")
    assert "No type was given for x, y: write y=8x2:int64 for integers" in ended.error


@pytest.mark.parametrize("seed", ["99999999999999999999999", "-9223372036854775809"])
def test_a_seed_that_no_plan_may_have_is_misuse(placer: Command, seed: str) -> None:
    ended = placer("plan", "bad_models:dense", "--cluster", "small.yaml", "--batch", "x=8x64", "--seed", seed)
    assert (ended.code, f"the seed is {seed}" in ended.error) == (2, True)


def test_momentum_of_an_optimizer_that_has_none_is_misuse(placer: Command) -> None:
    ended = placer("plan", "bad_models:dense", "--cluster", "small.yaml", "--batch", "x=8x64", "--momentum", "0.9")
    assert (ended.code, "--optimizer sgd" in ended.error) == (2, True)


@pytest.mark.parametrize("batch", ["x=8x64,y=8:int64", "x=8x64,y=8"])
def test_labels_that_the_model_takes_are_integers_where_nothing_else_computes(placer: Command, batch: str) -> None:
    ended = placer("plan", "bad_models:labelled", "--cluster", "small.yaml", "--batch", batch, "--strategy", "single")
    assert ended.code == 0, ended.error


@pytest.mark.parametrize("labels", ["y=8:int64", "y=8"])
def test_labels_of_classes_are_integers_where_said_and_where_nothing_else_computes(labels: str) -> None:
    from bad_models import classes, dense

    graph = capture(dense(), batch=f"x=8x64,{labels}", loss_fn=classes)
    assert {entry.name: entry.tensor.dtype for entry in graph.inputs} == {"x": "float32", "y": "int64"}
    assert any("int64" in note for note in graph.notes) == (labels == "y=8")


def test_a_given_type_is_never_replaced() -> None:
    from bad_models import classes, dense

    with pytest.raises(Exception, match="float64"):
        capture(dense(), batch={"x": (8, 64), "y": ((8,), torch.float64)}, loss_fn=classes)


# --- a plan changed by hand


def edited(made: Plan, change: Callable[[dict[str, JsonValue]], object], name: str = "plan.json") -> None:
    """plan.json of `made` with `change` done to it."""
    document = json.loads(made.to_json())
    change(document)
    Path(name).write_text(json.dumps(document))


@pytest.mark.in_turns
def test_a_plan_as_it_was_written_is_taken_as_it_is_however_it_is_laid_out(placer: Command, made: Plan) -> None:
    edited(made, lambda document: None)
    ended = placer("explain", "plan.json")
    assert (ended.code, ended.error) == (0, "")
    assert "no plan searched takes less than" in ended.out or made.bound is None


def test_a_changed_plan_is_predicted_anew_and_said_so(placer: Command, made: Plan) -> None:
    edited(made, lambda document: document.update(microbatches=[4, 4], bound=1e-9))
    ended = placer("explain", "plan.json", "--json")
    assert "was changed since placer wrote it" in ended.error
    shown = json.loads(ended.out)
    assert shown["step_time_seconds"] == estimate(replace(made, microbatches=(4, 4))).step_seconds
    assert shown["bound_seconds"] is None and shown["alternatives"] == []


@pytest.mark.parametrize("command", ["explain", "simulate", "verify"])
def test_microbatches_that_do_not_add_up_to_the_batch_are_refused(placer: Command, made: Plan, command: str) -> None:
    edited(made, lambda document: document.update(microbatches=[3, 3, 3]))
    ended = placer(command, "plan.json")
    assert ended.code == 2
    assert "9 rows" in ended.error and "8" in ended.error


@pytest.mark.parametrize(
    "change", [{"microbatches": [0, 8]}, {"stages": []}, {"schedule": "zero-bubble", "stages": "halved"}]
)
def test_a_plan_that_breaks_rules_now_is_refused_alike(
    placer: Command, made: Plan, change: dict[str, JsonValue]
) -> None:
    stages = json.loads(made.to_json())["stages"]
    if change.get("stages") == "halved":
        change = {**change, "stages": [{**stages[0], "last": stages[0]["last"] - 1}]}
    edited(made, lambda document: document.update(change))
    for command in ("explain", "simulate", "verify"):
        assert placer(command, "plan.json").code == 2, command


def test_a_setting_that_is_refused_names_the_file(placer: Command, made: Plan) -> None:
    settings = json.loads(made.to_json())["settings"]
    edited(made, lambda document: document.update(settings={**settings, "learning_rate": -1.0}))
    assert (
        "plan.json is not a valid plan: settings.learning_rate: Input should be greater"
        in placer("explain", "plan.json").error
    )


def test_a_field_that_no_plan_has_is_named(placer: Command, made: Plan) -> None:
    stages = json.loads(made.to_json())["stages"]
    edited(made, lambda document: document.update(stages=[{**stages[0], "frobnicate": 1}]))
    ended = placer("explain", "plan.json")
    assert ended.code == 2
    assert "stages.0.frobnicate" in ended.error


def test_a_plan_nested_beyond_reason_is_no_plan(placer: Command) -> None:
    Path("plan.json").write_text("[" * 1_000_000)
    ended = placer("explain", "plan.json")
    assert ended.code == 2
    assert "nested too deeply" in ended.error


# --- choices that contradict


@pytest.mark.in_turns
@pytest.mark.parametrize("pins", [("pipeline=2", "pipeline=1"), ("recompute=yes", "recompute=no")])
def test_pins_that_contradict_are_both_named(placer: Command, pins: tuple[str, str]) -> None:
    given = [argument for pin in pins for argument in ("--pin", pin)]
    ended = placer("plan", "bad_models:tiny", "--cluster", "small.yaml", "--batch", "8x32", *given)
    assert ended.code == 2
    assert pins[0] in ended.error and pins[1] in ended.error


@pytest.mark.parametrize("timeout", ["nan", "0", "-5", "inf"])
@pytest.mark.parametrize("command", ["verify", "execute"])
def test_a_timeout_that_is_none_is_refused(placer: Command, made: Plan, command: str, timeout: str) -> None:
    made.save("plan.json")
    ended = placer(command, "plan.json", f"--timeout={timeout}")
    assert ended.code == 2
    assert "--timeout" in ended.error


# --- outputs of a run


@pytest.mark.parametrize(
    ("output", "said"),
    [
        (("--report", "nowhere/r.json"), "does not exist"),
        (("--log-file", "nowhere/log.jsonl"), "does not exist"),
        (("--checkpoint", "small.yaml"), "is a file"),
        (("--tensorboard", "small.yaml/tb"), "is a file"),
    ],
)
def test_what_cannot_be_written_is_said_before_the_first_rank_joins(
    placer: Command, made: Plan, monkeypatch: pytest.MonkeyPatch, output: tuple[str, str], said: str
) -> None:
    made.save("plan.json")
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    ended = placer("execute", "plan.json", *output)
    assert ended.code == 2
    assert said in ended.error


def test_tensorboard_that_is_not_installed_is_said_before_the_first_rank_joins(
    placer: Command, made: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    made.save("plan.json")
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    ended = placer("execute", "plan.json", "--tensorboard", "tb")
    assert ended.code == 2
    assert "placer-planner[report]" in ended.error


def test_a_folder_of_the_demo_that_is_a_file_is_refused_at_once(placer: Command) -> None:
    ended = placer("demo", "--keep", "small.yaml")
    assert ended.code == 2
    assert "small.yaml is a file" in ended.error


# --- the cluster


@pytest.mark.in_turns
@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "found an empty file"),
        ("[1, 2]", "expected fields such as name, devices"),
        ("a: " + "[" * 5000, "nested too deeply"),
        (
            "name: lab\nnodes:\n  - {name: n, devices: [{kind: z}]}\ndevices:\n  z: {use: y}\n  y: {use: z}\n",
            "never one",
        ),
    ],
)
def test_a_cluster_file_that_describes_none(placer: Command, text: str, said: str) -> None:
    Path("wrong.yaml").write_text(text)
    ended = placer("plan", "bad_models:tiny", "--cluster", "wrong.yaml", "--batch", "8x32")
    assert ended.code == 2
    assert said in ended.error and "(found" not in ended.error


def test_a_cluster_that_is_a_folder_is_named(placer: Command) -> None:
    Path("lab").mkdir()
    ended = placer("plan", "bad_models:tiny", "--cluster", "./lab", "--batch", "8x32")
    assert ended.code == 2
    assert "is a folder; name a file" in ended.error
