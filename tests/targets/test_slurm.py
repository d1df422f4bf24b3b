"""A real Slurm starts the job that `placer launch` writes: on alike and on unlike nodes, with one device's losses."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from slurm_machine import Slurm, missing, slurm

pytestmark = pytest.mark.skipif(bool(missing()), reason=missing())

CHECKOUT = str(Path(__file__).resolve().parents[2])
# torchrun and placer of this Python come first on the path of jobs.
PATH = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
ENVIRONMENT = {**os.environ, "PATH": PATH, "PYTHONPATH": CHECKOUT, "OMP_NUM_THREADS": "1"}

CHIPS = """\
name: {name}
devices:
  quick: {{backend: cpu, memory: 4 GiB, memory_bandwidth: 10 GB/s, rates: {{float32: 80 GFLOP/s}}, launch: 5 us,
          efficiency: {{points: [[1 MFLOP, 50%], [1 GFLOP, 90%]]}}}}
  slow: {{backend: cpu, memory: 4 GiB, memory_bandwidth: 10 GB/s, rates: {{float32: 40 GFLOP/s}}, launch: 5 us,
         efficiency: {{points: [[1 MFLOP, 50%], [1 GFLOP, 90%]]}}}}
network:
  - {{name: net, link: {{latency: 20 us, bandwidth: 1 GB/s}}}}
nodes:
"""
NODE = """\
  - name: {name}
    count: {count}
    devices: [{{kind: {kind}, count: {devices}}}]
    link: {{latency: 5 us, bandwidth: 5 GB/s}}
    nic: {{latency: 20 us, bandwidth: 1 GB/s}}
"""


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder with a short path, as sockets want it."""
    made = Path(tempfile.mkdtemp(prefix="slurm"))
    yield made
    shutil.rmtree(made, ignore_errors=True)


def placer(folder: Path, *asked: str, launcher: tuple[str, ...] = ()) -> None:
    run = [*launcher, sys.executable, "-m", "placer", *asked]
    ended = subprocess.run(run, cwd=folder, env=ENVIRONMENT, capture_output=True, text=True, timeout=1800, check=False)
    assert ended.returncode == 0, ended.stderr


def losses(folder: Path, name: str) -> list[float]:
    found: list[float] = json.loads((folder / name).read_text())["losses"]
    return found


def one_device(folder: Path, *asked: str) -> list[float]:
    placer(folder, "plan", *asked, "--cluster", "localx1", "-o", "one.json")
    alone = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "1", "--no-python")
    placer(folder, "execute", "one.json", "--steps", "3", "--report", "single.json", launcher=alone)
    return losses(folder, "single.json")


def trained(folder: Path, running: Slurm, *asked: str) -> tuple[str, list[float]]:
    """The job that was written, and its losses."""
    placer(folder, "plan", *asked, "-o", "plan.json")
    flags = [f"--flag={word}" for word in ("--steps", "3", "--report", "run.json")]
    placer(folder, "launch", str(folder / "plan.json"), "--to", "slurm", "-o", str(folder / "job"), *flags)
    script = next((folder / "job").glob("*.sbatch"))
    state, printed = running.finished(script, 400)
    assert state == "COMPLETED", printed
    return script.read_text(), losses(script.parent, "run.json")


def test_alike_nodes(folder: Path) -> None:
    text = CHIPS.format(name="pair") + NODE.format(name="box", count=2, kind="quick", devices=1)
    (folder / "pair.yaml").write_text(text)
    asked = ("examples.gpt:build", "--batch", "4x32")
    with slurm(folder, 2, ENVIRONMENT) as running:
        script, found = trained(folder, running, *asked, "--cluster", "pair.yaml", "--pin", "pipeline=2")
    assert "hetjob" not in script
    assert found == pytest.approx(one_device(folder, *asked), rel=1e-5)


def test_the_four_commands_of_the_readme_end_in_a_job_that_trains(folder: Path) -> None:
    readme = (Path(CHECKOUT) / "README.md").read_text()
    (block,) = (block for block in re.findall(r"```bash\n(.*?)```", readme, flags=re.DOTALL) if "sbatch" in block)
    *before, last = block.splitlines()
    assert last.startswith("cd job && sbatch job.sbatch")
    (folder / "examples").symlink_to(Path(CHECKOUT) / "examples")
    for line in before:
        words = shlex.split(line.replace("$PWD", str(folder)), comments=True)
        assert words.pop(0) == "placer"
        placer(folder, *words)
    with slurm(folder, 1, ENVIRONMENT) as running:
        state, printed = running.finished(folder / "job" / "job.sbatch", 400)
    assert state == "COMPLETED", printed
    assert "step 10" in printed and (folder / "checkpoints").is_dir()


def test_unlike_nodes_are_a_heterogeneous_job(folder: Path) -> None:
    nodes = NODE.format(name="big", count=1, kind="quick", devices=2)
    nodes += NODE.format(name="small", count=2, kind="slow", devices=1)
    (folder / "three.yaml").write_text(CHIPS.format(name="three") + nodes)
    asked = ("examples.gpt:build", "--batch", "8x32")
    with slurm(folder, 3, ENVIRONMENT) as running:
        script, found = trained(folder, running, *asked, "--cluster", "three.yaml", "--pin", "data=4")
    assert script.count("#SBATCH hetjob") == 1
    assert found == pytest.approx(one_device(folder, *asked), rel=1e-5)
