"""The README's commands and examples are the ones that work."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import placer

TOPS = ("placer", "strategies", "runtime", "examples", "tests")


def blocks(checkout: Path, language: str, page: str = "README.md") -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", (checkout / page).read_text(), flags=re.DOTALL)


def pages(checkout: Path) -> list[Path]:
    """README.md, the page of each folder, the guides."""
    found = [checkout / "README.md", *(checkout / top / "README.md" for top in TOPS)]
    return [*found, *sorted(checkout.glob("examples/*/*.md"))]


@pytest.fixture
def desk(checkout: Path, tmp_path: Path) -> Path:
    """An empty folder with the examples in it."""
    (tmp_path / "examples").symlink_to(checkout / "examples")
    return tmp_path


def shell(command: str, folder: Path) -> str:
    """What bash prints for a command that must succeed, with this interpreter's commands first on the PATH."""
    path = os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"]))
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", command],
        cwd=folder,
        env={**os.environ, "PATH": path},
        capture_output=True,
        text=True,
        timeout=1800,
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
    return done.stdout


def test_two_commands_set_up_everything_themselves(checkout: Path) -> None:
    demo, tests = (command for command in blocks(checkout, "bash") if "python3 -m venv" in command)
    assert demo.startswith("python3 -m venv .venv && ") and demo.endswith(".venv/bin/placer demo\n")
    assert tests.startswith("python3 -m venv .venv && ") and tests.endswith(".venv/bin/python -m pytest\n")


@pytest.mark.in_turns
def test_the_python_example_runs(checkout: Path, desk: Path) -> None:
    (example,) = blocks(checkout, "python")
    (desk / "example.py").write_text(example)
    printed = shell("python example.py", desk)
    assert "predicted step" in printed
    assert placer.Plan.load(desk / "plan.json").rows == 8


@pytest.mark.in_turns
def test_the_shell_example_runs(checkout: Path, desk: Path) -> None:
    (example,) = (command for command in blocks(checkout, "bash") if "placer verify" in command)
    printed = shell(example, desk)
    assert "predicted beside measured" in printed
    assert (desk / "trace.json").is_file()
    assert len((desk / "log.jsonl").read_text().splitlines()) >= 20


@pytest.mark.in_turns
def test_four_commands_lead_from_a_config_to_a_job_that_trains(checkout: Path, desk: Path) -> None:
    commands = to_a_job(checkout)
    assert [line.split("placer ")[-1].split()[0] for line in commands.splitlines()[:3]] == ["plan", "report", "launch"]
    programs = slurm_of_one_host(desk / "bin")
    shell(f"export PATH={programs}:$PATH\n{commands}", desk)
    assert "<html" in (desk / "report.html").read_text()
    assert (desk / "checkpoints").is_dir() and "step 10" in (desk / "job" / "job.out").read_text()


def to_a_job(checkout: Path) -> str:
    (example,) = (command for command in blocks(checkout, "bash") if "sbatch" in command)
    return example


def slurm_of_one_host(folder: Path) -> Path:
    """Programs that stand for Slurm's: a job runs at once, its one task here (`tests/targets/` has a real Slurm)."""
    folder.mkdir()
    job = "export SLURM_JOB_NODELIST=n SLURM_JOB_ID=$((RANDOM % 20000)) SLURM_NNODES=1 SLURM_NODEID=0"
    texts = {
        "sbatch": f'{job}\nbash "$1" > job.out 2>&1',
        "scontrol": "echo 127.0.0.1",
        "srun": 'while [ "$1" != bash ]; do shift; done\nexec "$@"',
    }
    for name, text in texts.items():
        (folder / name).write_text(f"#!/bin/bash\n{text}\n")
        (folder / name).chmod(0o755)
    return folder


@pytest.mark.in_turns
def test_the_training_loop_of_ones_own_runs(desk: Path) -> None:
    shell("placer plan examples.gpt:build --cluster localx2 --batch 8x128 --pin pipeline=2 -o plan.json", desk)
    printed = shell("torchrun --nproc-per-node 2 examples/own_loop.py plan.json", desk)
    assert len(re.findall(r"step 2 loss \d", printed)) == 1


@pytest.mark.in_turns
def test_the_training_loop_of_ones_own_says_how_it_is_run(checkout: Path) -> None:
    loop = [sys.executable, str(checkout / "examples" / "own_loop.py")]
    done = subprocess.run(loop, capture_output=True, text=True, timeout=1800)
    assert done.returncode == 1 and done.stderr.startswith("usage: torchrun ")


def test_the_cluster_file_is_the_example(checkout: Path) -> None:
    written, *_ = blocks(checkout, "yaml", "examples/guides/machines.md")
    assert written == (checkout / "examples" / "cluster.yaml").read_text()
    assert placer.Cluster.load(str(checkout / "examples" / "cluster.yaml")).size == 20


def test_the_files_that_pages_name_are_there(checkout: Path) -> None:
    named = {
        name
        for page in pages(checkout)
        for name in re.findall(r"`((?:placer|strategies|runtime|tests|examples)/[\w/.]*)`", page.read_text())
    }
    assert len(named) > 30
    assert sorted(name for name in named if not (checkout / name).exists()) == []


def test_the_links_of_pages_lead_somewhere(checkout: Path) -> None:
    wrong = []
    for page in pages(checkout):
        for link in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
            target, _, anchor = link.partition("#")
            led = (page.parent / target).resolve() if target else page
            if not led.exists() or (anchor and anchor not in anchors(led)):
                wrong.append(f"{page.relative_to(checkout)}: {link}")
    assert wrong == []


def anchors(page: Path) -> set[str]:
    """The headings of a page as links name them."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading).lower().replace(" ", "-") for heading in headings}


def test_the_readme_is_a_page_and_a_half(checkout: Path) -> None:
    assert 120 <= len((checkout / "README.md").read_text().splitlines()) <= 180
