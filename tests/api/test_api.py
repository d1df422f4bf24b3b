"""The public names: light to import, the same whatever was imported first."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import placer
from placer.cluster.cluster import Cluster
from placer.errors import UsageError
from plans import two_stage_plan


def python(code: str, *arguments: str) -> str:
    """What a fresh interpreter prints."""
    done = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, timeout=1800)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_the_public_names_are_there() -> None:
    for name in placer.__all__:
        assert getattr(placer, name) is not None


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="nonsense"):
        placer.nonsense  # noqa: B018


def test_importing_placer_imports_neither_torch_nor_a_solver() -> None:
    heavy = python("import sys, placer; print([n for n in ('torch', 'transformers', 'ortools') if n in sys.modules])")
    assert heavy == "[]"


@pytest.mark.in_turns
@pytest.mark.parametrize("first", ["placer.api", "placer.cli.commands.planning.plan", "placer.runtime"])
def test_plan_is_a_function_whatever_is_imported_first(first: str) -> None:
    before = f"import {first}; import placer; print(type(placer.plan).__name__, type(placer.capture).__name__)"
    after = f"import placer; import {first}; print(type(placer.plan).__name__, type(placer.simulate).__name__)"
    assert python(before) == "function function"
    assert python(after) == "function function"


@pytest.mark.in_turns
def test_the_runtime_stays_a_module_and_plan_a_function_after_it_is_reached() -> None:
    code = "import placer; print(callable(placer.runtime.load), type(placer.plan).__name__)"
    assert python(code) == "True function"


def test_a_plan_is_read_checked_estimated_simulated_and_reported_without_torch(tmp_path: Path) -> None:
    two_stage_plan().save(tmp_path / "plan.json")
    code = """
import sys
import placer
from placer.legality import check
from placer.program.lowering import lower
plan = placer.Plan.load(sys.argv[1])
assert check(plan) == (), check(plan)
assert len(lower(plan)) == 2
assert placer.estimate(plan).step_seconds > 0
assert placer.simulate(plan).ledger.step_seconds > 0
assert "two cores" in str(plan)
assert "torch" not in sys.modules
assert "ortools" not in sys.modules
print("light")
"""
    assert python(code, str(tmp_path / "plan.json")) == "light"


@pytest.mark.in_turns
def test_a_plan_is_executed_without_importing_a_solver() -> None:
    code = "import sys, placer.runtime.training.execute, placer.runtime; print('ortools' in sys.modules)"
    assert python(code) == "False"


@pytest.mark.parametrize("wrong", [None, "plan.json", 3])
def test_what_is_no_plan_is_named(wrong: object) -> None:
    for function in (placer.simulate, placer.estimate):
        with pytest.raises(UsageError, match="is no plan"):
            function(wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize("wrong", [None, 3, "", ["h100"]])
def test_what_is_no_cluster_is_named(wrong: object) -> None:
    with pytest.raises(UsageError, match="the cluster is"):
        Cluster.load(wrong)  # type: ignore[arg-type]
