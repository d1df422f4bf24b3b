"""A real Slurm on this machine for the time of a test: a controller, and nodes that are all this host.

Nodes are called 127.0.0.1, 127.0.0.2, ...: names that lead to this host without a name server. Nothing is left behind.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "srun", "scontrol", "sinfo")
SYSTEM = "/usr/sbin:/sbin"
PATIENCE = 1200.0


def missing() -> str:
    """Why there can be no Slurm here; empty where there can."""
    path = f"{os.environ['PATH']}:{SYSTEM}"
    absent = [name for name in PROGRAMS if shutil.which(name, path=path) is None]
    if absent:
        return f"not installed: {', '.join(absent)}"
    return "" if os.geteuid() == 0 else "Slurm's daemons are started as root"


@dataclass(frozen=True, slots=True, kw_only=True)
class Slurm:
    """A running Slurm; `environment` is what its commands need."""

    folder: Path
    environment: dict[str, str]

    def finished(self, script: Path, seconds: float) -> tuple[str, str]:
        """The state in which a batch job ends, and what it printed. Raises TimeoutError."""
        told = self._run("sbatch", "--parsable", script.name, at=script.parent)
        job = told.split(";")[0].strip()
        ends = time.monotonic() + seconds
        while time.monotonic() < ends:
            words = self._run("scontrol", "show", "job", job).split()
            state = next(word.removeprefix("JobState=") for word in words if word.startswith("JobState="))
            if state not in ("PENDING", "CONFIGURING", "RUNNING", "COMPLETING"):
                return state, "".join(path.read_text() for path in sorted(script.parent.glob("*.out")))
            time.sleep(0.5)
        raise TimeoutError(f"job {job} has not ended after {seconds} s")

    def _run(self, *command: str, at: Path | None = None) -> str:
        ended = subprocess.run(
            command,
            env=self.environment,
            cwd=at or self.folder,
            capture_output=True,
            text=True,
            timeout=1800,
            check=False,
        )
        assert ended.returncode == 0, f"{command}: {ended.stderr}"
        return ended.stdout


@contextmanager
def slurm(folder: Path, nodes: int, given: Mapping[str, str]) -> Iterator[Slurm]:
    """Slurm with so many nodes; its files are in `folder`, whose path must be short: sockets lie in it. given: the
    environment, which jobs see."""
    ports = _free_ports(nodes + 1)
    environment = {**given, "PATH": f"{given['PATH']}:{SYSTEM}", "SLURM_CONF": str(folder / "slurm.conf")}
    for name in ("state", "log", *(f"spool-127.0.0.{number + 1}" for number in range(nodes))):
        (folder / name).mkdir()
    (folder / "slurm.conf").write_text(_configuration(folder, ports))
    (folder / "key").write_bytes(os.urandom(128))
    (folder / "key").chmod(0o600)
    with ExitStack() as running:
        munge = [
            "munged", "--foreground", "--force", f"--socket={folder}/munge", f"--key-file={folder}/key",
            f"--pid-file={folder}/munge.pid", f"--seed-file={folder}/seed", f"--log-file={folder}/log/munge",
        ]  # fmt: skip
        running.enter_context(_started(munge, environment, folder / "log" / "munge.out"))
        _wait((folder / "munge").exists, "munged")
        running.enter_context(_started(["slurmctld", "-D", "-c"], environment, folder / "log" / "ctld.out"))
        for number in range(nodes):
            daemon = ["slurmd", "-D", "-N", f"127.0.0.{number + 1}"]
            running.enter_context(_started(daemon, environment, folder / "log" / f"d{number}.out"))
        made = Slurm(folder=folder, environment=environment)
        _wait(lambda: _idle(environment) == nodes, "the nodes")
        yield made


def _idle(environment: dict[str, str]) -> int:
    told = subprocess.run(
        ["sinfo", "-h", "-N", "-o", "%T"], env=environment, capture_output=True, text=True, timeout=1800, check=False
    )
    return told.stdout.split().count("idle")


def _configuration(folder: Path, ports: list[int]) -> str:
    host = socket.gethostname()
    lines = [
        "ClusterName=made", f"SlurmctldHost={host}(127.0.0.1)", f"SlurmctldPort={ports[0]}", "SlurmUser=root",
        "AuthType=auth/munge", f"AuthInfo=socket={folder}/munge", "CredType=cred/munge",
        f"StateSaveLocation={folder}/state", f"SlurmdSpoolDir={folder}/spool-%n",
        f"SlurmctldPidFile={folder}/ctld.pid", f"SlurmdPidFile={folder}/d-%n.pid",
        f"SlurmctldLogFile={folder}/log/ctld", f"SlurmdLogFile={folder}/log/d-%n",
        "ProctrackType=proctrack/pgid", "TaskPlugin=task/none", "SelectType=select/cons_tres",
        "JobAcctGatherType=jobacct_gather/none", "SlurmdParameters=config_overrides", "ReturnToService=2",
        "SchedulerParameters=sched_interval=1,bf_interval=1,bf_yield_interval=1000000",
        "MpiDefault=none", "SwitchType=switch/none",
    ]  # fmt: skip
    for number, port in enumerate(ports[1:], 1):
        lines.append(
            f"NodeName=127.0.0.{number} NodeHostname={host} NodeAddr=127.0.0.1 Port={port} CPUs=4 RealMemory=2000"
        )
    return "\n".join([*lines, "PartitionName=all Nodes=ALL Default=YES State=UP", ""])


@contextmanager
def _started(command: list[str], environment: dict[str, str], log: Path) -> Iterator[None]:
    with log.open("w") as output:
        process = subprocess.Popen(
            command, env=environment, stdout=output, stderr=subprocess.STDOUT, start_new_session=True
        )
    try:
        yield
    finally:
        process.terminate()
        try:
            process.wait(timeout=1800)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _wait(come: Callable[[], bool], what: str) -> None:
    ends = time.monotonic() + PATIENCE
    while not come():
        if time.monotonic() > ends:
            raise TimeoutError(f"{what} did not come")
        time.sleep(0.2)


def _free_ports(count: int) -> list[int]:
    with ExitStack() as opened:
        sockets = [opened.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]
