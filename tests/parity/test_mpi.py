"""MPI as a backend: its operations are gloo's, plans run over it as on one device, what is not there is refused."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
from torch import distributed as dist

from examples.parity import models as parity_models
from examples.parity.cases import Case, plan_of
from mixed_plans import machines, on
from placer.cli import main
from placer.errors import UsageError
from placer.plans.plan import Plan
from placer.runtime.distributed import backends
from placer.runtime.distributed.backends import require_backend
from placer.runtime.distributed.mpi.started import UNASKED, installed, mpirun
from placer.runtime.training.run_report import ExecuteOptions

WORDS = Case(
    model="examples.parity.models:words", shapes=parity_models.TEXT, replicas=2, precision="float32", optimizer="sgd"
)
RANKS = str(Path(__file__).with_name("mpi_ranks.py"))
needs_mpi = pytest.mark.skipif(not (installed() and mpirun()), reason="needs mpi4py and an MPI with its mpirun")


def started(ranks: int, *arguments: str, seconds: float = 500.0) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, **UNASKED, "OMP_NUM_THREADS": "1"}
    command = [mpirun(), "-n", str(ranks), sys.executable, *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=seconds, check=False)


@pytest.mark.in_turns
@needs_mpi
def test_every_operation_gives_what_gloo_gives(tmp_path: Path) -> None:
    done = started(3, RANKS, "same_as_gloo", str(tmp_path))
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("the same") == 3


@pytest.mark.in_turns
@needs_mpi
@pytest.mark.parametrize(
    "case",
    [WORDS, replace(WORDS, sharding="parameters"), replace(WORDS, replicas=1, positions=2)],
    ids=str,
)
def test_plans_run_over_mpi_as_on_one_device(case: Case, tmp_path: Path) -> None:
    plan_of(case).save(tmp_path / "plan.json")
    done = started(2, "-m", "placer", "verify", str(tmp_path / "plan.json"), "--steps", "2", "--backend", "mpi")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "equal to one device" in done.stdout and done.stdout.count("equal to one device") == 1


@pytest.mark.in_turns
@needs_mpi
def test_gradients_are_summed_in_16_bits_over_mpi_too(tmp_path: Path) -> None:
    plan = plan_of(WORDS)
    asked = replace(plan, settings=replace(plan.settings, gradient_compression="bfloat16"))
    asked.save(tmp_path / "plan.json")
    done = started(2, "-m", "placer", "verify", str(tmp_path / "plan.json"), "--steps", "1", "--backend", "mpi")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "but for gradients that were summed in bfloat16" in " ".join(done.stdout.split())


@pytest.mark.in_turns
@needs_mpi
@pytest.mark.parametrize(("name", "said"), [("killed", "signal 9"), ("late", "Timed out after 20 s in a collective")])
def test_a_rank_that_dies_or_hangs_ends_the_run(name: str, said: str, tmp_path: Path) -> None:
    began = time.monotonic()
    done = started(2, RANKS, name, str(tmp_path))
    assert done.returncode != 0 and said in done.stdout + done.stderr, done.stdout + done.stderr
    assert time.monotonic() - began < 1800  # and not the 3600 that a rank sleeps


@pytest.mark.in_turns
@needs_mpi
def test_mpirun_with_another_number_of_ranks_is_refused_before_the_run(tmp_path: Path) -> None:
    plan_of(WORDS).save(tmp_path / "plan.json")
    done = started(1, "-m", "placer", "execute", str(tmp_path / "plan.json"), "--backend", "mpi")
    assert done.returncode == 2
    assert "mpirun started 1, fewer than it wants; run: mpirun -n 2 placer execute" in " ".join(done.stderr.split())


def test_mpi_without_mpirun_or_mpi4py_is_refused_with_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    plan_of(WORDS).save(tmp_path / "plan.json")
    for there, wanted in ((True, "run: mpirun -n 2 placer execute"), (False, "pip install 'placer-planner[mpi]'")):
        monkeypatch.setattr(backends, "installed", lambda there=there: there)
        monkeypatch.setattr(sys, "argv", ["placer", "execute", str(tmp_path / "plan.json"), "--backend", "mpi"])
        with pytest.raises(SystemExit) as ended:
            main()
        assert ended.value.code == 2 and wanted in capsys.readouterr().err


@pytest.mark.parametrize(
    ("backend", "plan", "said"),
    [
        ("nccl", plan_of(WORDS), "the plan's ranks are on CPUs, whose tensors NCCL cannot move"),
        ("gloo", on(plan_of(WORDS), machines(2, 0)), "the plan's ranks are on GPUs, whose tensors NCCL moves"),
        ("mpi", on(plan_of(WORDS), machines(2, 0)), "the plan's ranks are on GPUs, whose tensors NCCL moves"),
        ("gloo", on(plan_of(WORDS), machines(1, 1)), "ranks on GPUs and on CPUs, each of which has its own"),
    ],
)
def test_a_backend_that_cannot_move_the_plans_tensors_is_refused(
    backend: backends.BackendName, plan: Plan, said: str
) -> None:
    with pytest.raises(UsageError, match=said):
        require_backend(plan, backend)


def test_nccl_is_refused_by_a_torch_that_lacks_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dist, "is_nccl_available", lambda: False)
    with pytest.raises(UsageError, match="was built without NCCL; install one for CUDA"):
        require_backend(on(plan_of(WORDS), machines(2, 0)), "nccl")


def test_another_engine_makes_groups_of_its_own() -> None:
    with pytest.raises(UsageError, match="--backend mpi was asked for with --engine deepspeed"):
        ExecuteOptions(backend="mpi", engine="deepspeed")
