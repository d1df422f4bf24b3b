"""The command line: help with an example, one JSON document, exit codes, no traceback for a user's mistake."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

import jsonschema
import pytest

from placer import __main__ as program
from placer.cli import main
from placer.plans.plan import Plan
from plans import two_stage_plan

COMMANDS = (
    "plan",
    "advise",
    "fit",
    "explain",
    "simulate",
    "execute",
    "verify",
    "demo",
    "doctor",
    "calibrate",
    "schema",
    "sweep",
    "stragglers",
)


Command = Callable[..., "Ended"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """What a command printed."""

    stdout: str
    stderr: str


@pytest.fixture
def placer(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Command:
    """Run a command in this process and hold it to its exit code."""
    monkeypatch.setenv("TERM", "dumb")

    def run(*arguments: str, code: int = 0) -> Ended:
        monkeypatch.setattr(sys, "argv", ["placer", *arguments])
        ended = 0
        try:
            main()
        except SystemExit as end:
            ended = int(end.code or 0)
        printed = capsys.readouterr()
        assert ended == code, printed.out + printed.err
        return Ended(stdout=printed.out, stderr=printed.err)

    return run


@pytest.fixture(scope="module")
def plan_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("plans") / "plan.json"
    two_stage_plan().save(path)
    return path


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help_with_an_example_and_json(placer: Command, command: str) -> None:
    text = placer(command, "--help").stdout
    assert f"placer {command}" in text.partition("Example:")[2]
    assert "--json" in text


def test_help_lists_every_command(placer: Command) -> None:
    text = placer("--help").stdout
    for command in COMMANDS:
        assert f"  {command} " in text


def test_explain_prints_the_table(placer: Command, plan_file: Path) -> None:
    assert placer("explain", str(plan_file)).stdout.strip() == str(Plan.load(plan_file)).strip()


def test_explain_prints_one_json_document(placer: Command, plan_file: Path) -> None:
    assert json.loads(placer("explain", str(plan_file), "--json").stdout)["schedule"] == "1f1b"


def test_explain_prints_the_program_of_a_rank(placer: Command, plan_file: Path) -> None:
    lines = placer("explain", str(plan_file), "--program", "--rank", "1").stdout.splitlines()
    assert any(line.startswith("1F0") for line in lines)
    assert any(line.startswith("receive activation") for line in lines)


def test_the_program_of_a_rank_is_a_document_whose_keys_carry_units(placer: Command, plan_file: Path) -> None:
    document = json.loads(placer("explain", str(plan_file), "--program", "--rank", "1", "--json").stdout)
    kinds = {entry["do"] for entry in document["instructions"]}
    assert {"compute", "receive", "update"} <= kinds
    received = next(entry for entry in document["instructions"] if entry["do"] == "receive")
    assert received["bytes"] > 0 and received["peer_rank"] == 0
    assert all(isinstance(entry["rows"], int) for entry in document["instructions"] if entry["do"] == "compute")


def test_the_version_is_that_of_the_distribution(placer: Command) -> None:
    assert placer("--version").stdout == f"placer {version('placer-planner')}\n"


def test_explain_refuses_a_rank_that_is_not_there(placer: Command, plan_file: Path) -> None:
    assert "ranks 0 to 1" in placer("explain", str(plan_file), "--program", "--rank", "2", code=2).stderr


def test_simulate_writes_a_trace_to_standard_output(placer: Command, plan_file: Path) -> None:
    trace = json.loads(placer("simulate", str(plan_file), "--trace", "-").stdout)
    assert trace["traceEvents"]


def test_simulate_prints_one_json_document_beside_the_trace_file(
    placer: Command, plan_file: Path, tmp_path: Path
) -> None:
    done = placer("simulate", str(plan_file), "--trace", str(tmp_path / "trace.json"), "--json")
    assert json.loads(done.stdout)["step_time_seconds"] > 0
    assert json.loads((tmp_path / "trace.json").read_text())["traceEvents"]


def test_a_plan_satisfies_the_published_schema(placer: Command, plan_file: Path) -> None:
    schema = json.loads(placer("schema").stdout)
    jsonschema.validate(json.loads(plan_file.read_text()), schema)


def test_a_mistake_is_one_message_and_exit_code_2(placer: Command) -> None:
    done = placer("explain", "nowhere.json", code=2)
    assert done.stdout == ""
    assert done.stderr == "placer: the plan nowhere.json does not exist; check the path\n"


def test_a_mistake_under_json_is_a_document_too(placer: Command) -> None:
    document = json.loads(placer("explain", "nowhere.json", "--json", code=2).stdout)
    assert document["error"] == "UsageError"
    assert "does not exist" in document["message"]


def test_an_unknown_flag_is_misuse(placer: Command) -> None:
    placer("explain", "--nonsense", code=2)


def test_doctor_says_what_this_machine_is(placer: Command) -> None:
    document = json.loads(placer("doctor", "--json").stdout)
    found = {finding["name"]: finding["found"] for finding in document["findings"]}
    assert document["fine"] is True
    assert int(found["cores"]) >= 1
    assert found["execute on processors (gloo)"] == "yes"


def test_doctor_finds_a_library_that_was_built_for_another_torch(
    placer: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "torchvision.py").write_text("raise RuntimeError('operator torchvision::nms does not exist')")
    (tmp_path / "timm.py").touch()
    for name in [name for name in sys.modules if name.split(".")[0] in ("torchvision", "timm")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.syspath_prepend(tmp_path)
    findings = {one["name"]: one for one in json.loads(placer("doctor", "--json", code=1).stdout)["findings"]}
    assert findings["vision"]["found"] == "does not load"
    assert "operator torchvision::nms does not exist" in findings["vision"]["advice"]


def test_a_library_that_does_not_load_is_not_called_the_users_mistake(
    placer: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "unloaded_models.py").write_text(
        "def build():\n"
        "    try:\n"
        "        raise RuntimeError('operator torchvision::nms does not exist')\n"
        "    except RuntimeError as error:\n"
        "        raise ModuleNotFoundError('Could not import module LlamaConfig') from error\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    told = placer("plan", "unloaded_models:build", "--cluster", "h100x8", "--batch", "x=8x4", code=2).stderr
    assert "does not load" in told and "torchvision::nms" in told and "correct it" not in told


def test_the_reader_may_stop_reading(plan_file: Path) -> None:
    shell = f"{sys.executable} -m placer explain {plan_file} | head -n 1"
    done = subprocess.run(shell, shell=True, capture_output=True, text=True, timeout=1800)
    assert "Traceback" not in done.stderr


@pytest.mark.skipif(os.name != "posix", reason="signals")
def test_ctrl_c_ends_with_a_word_and_without_a_traceback() -> None:
    # A shell that starts this suite in the background makes its processes deaf to interrupts; this one listens.
    code = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); "
    code += "import time, placer.cli.commands.running.doctor as d, sys; "
    code += "d.examine = lambda: (print('ready', flush=True), time.sleep(600)); "
    code += "sys.argv = ['placer', 'doctor']; import placer.__main__ as m; m.main()"
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=1800)
    assert (process.returncode, errors) == (128 + signal.SIGINT, "placer: interrupted\n")


def test_ctrl_c_while_the_command_is_loading_is_no_error_either(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.delitem(sys.modules, "placer.cli")
    monkeypatch.setattr("importlib._bootstrap._load_unlocked", interrupted)
    with pytest.raises(SystemExit) as ended:
        program.main()
    assert ended.value.code == 128 + signal.SIGINT
    assert capsys.readouterr().err == "placer: interrupted\n"


def test_importing_placer_imports_neither_torch_nor_pydantic() -> None:
    code = "import sys, placer; print(sorted({'torch', 'pydantic', 'numpy'} & set(sys.modules)), placer.Plan.__name__)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=1800)
    assert done.stdout == "[] Plan\n"


@pytest.mark.in_turns
def test_how_the_run_updates_its_weights_is_kept_in_the_plan(placer: Command, tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    how = ("--optimizer", "sgd", "--momentum", "0.9", "--weight-decay", "0", "--clip-norm", "0")
    one = ("--cluster", "h100", "--batch", "2x8", "--strategy", "single", "-o", str(path))
    placer("plan", "examples.models:tiny_gpt2", *one, *how)
    settings = Plan.load(path).settings
    assert (settings.optimizer, settings.momentum, settings.weight_decay) == ("sgd", 0.9, 0.0)
    assert settings.clip_norm is None
