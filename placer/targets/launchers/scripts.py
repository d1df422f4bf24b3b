"""torchrun by hand, Slurm, SkyPilot, Ray: scripts that run one torchrun on each node.

Slurm: one task a node; unlike nodes are a heterogeneous job, whose step sees SLURM_NODEID across all groups in their
order (tried with Slurm 22.05.8). No fallback for the first node's address: every node would meet itself.
"""

from __future__ import annotations

import json
import re
import shlex

import yaml

from placer.errors import UsageError
from placer.targets.launchers.asked import PORT, LaunchAsked, torchrun
from placer.targets.launchers.hosts import HostGroup

Groups = tuple[HostGroup, ...]
# sbatch(1), --time: minutes, minutes:seconds, hours:minutes:seconds, days-hours and days-hours:minutes(:seconds).
_SLURM_TIME = re.compile(r"\d+(:[0-5]?\d){0,2}|\d+-\d+(:[0-5]?\d){0,2}|UNLIMITED|INFINITE")


def torchrun_files(groups: Groups, asked: LaunchAsked) -> dict[str, str]:
    """A script for every node: `bash run.sh NODE_RANK ADDRESS_OF_THE_FIRST`; of one node without words."""
    nodes = _nodes(groups)
    head = ["#!/usr/bin/env bash", "set -euo pipefail"]
    if nodes == 1:
        command = f"torchrun --nproc-per-node={groups[0].ranks} --no-python {shlex.join(asked.execute)}"
        return {"run.sh": "\n".join([*head, f"exec {_restarted(command, asked)}", ""])}
    usage = 'usage="bash run.sh NODE_RANK ADDRESS: the rank of this node, and the host name of node 0"'
    listed = [f"# node ranks {_span(group)}: {group.kind}, {group.ranks} ranks each" for group in groups]
    command = torchrun(str(nodes), '"$ranks"', '"$node"', '"$address"', str(PORT), asked.execute)
    return {
        "run.sh": "\n".join([
            *head, *listed, usage, 'node="${1:?$usage}"', 'address="${2:?$usage}"', _ranks_of(groups, "node"),
            f"exec {_restarted(command, asked)}", "",
        ])
    }  # fmt: skip


def slurm_files(groups: Groups, asked: LaunchAsked) -> dict[str, str]:
    """`job.sbatch`: for `sbatch job.sbatch`."""
    lines = ["#!/bin/bash", f"#SBATCH --job-name={asked.name}"]
    for number, group in enumerate(groups):
        lines += ["#SBATCH hetjob"] if number else []
        lines.append(f"#SBATCH --nodes={group.count} --ntasks-per-node=1 --exclusive")
        lines += [f"#SBATCH --gpus-per-node={group.ranks}"] if group.accelerators else []
        lines += [f"#SBATCH --partition={_word(asked.queue, 'queue')}"] if asked.queue else []
        lines += [f"#SBATCH --time={_slurm_time(asked.time)}"] if asked.time else []
    lines += ["#SBATCH --requeue"] if asked.restarts else []
    lines += [f"#SBATCH --output={asked.name}-%j.out --open-mode=append", "set -euo pipefail"]
    several = len(groups) > 1
    listed = "SLURM_JOB_NODELIST_HET_GROUP_0" if several else "SLURM_JOB_NODELIST"
    lines.append(f'export HEAD_NODE="$(scontrol show hostnames "${listed}" | head -n1)"')
    lines.append("export MASTER_PORT=$((10000 + SLURM_JOB_ID % 20000))")
    if asked.restarts:
        lines += [f'if [ "${{SLURM_RESTART_COUNT:-0}}" -gt {asked.restarts} ]; then', "  exit 1", "fi"]
    command = torchrun(
        str(_nodes(groups)), '"$ranks"', '"$SLURM_NODEID"', '"$HEAD_NODE"', '"$MASTER_PORT"', asked.execute
    )
    inside = f"{_ranks_of(groups, 'SLURM_NODEID')}; exec {command}"
    step = "srun --kill-on-bad-exit=1" + (f" --het-group={','.join(map(str, range(len(groups))))}" if several else "")
    lines += [f"{step} bash -c {shlex.quote(inside)}", ""]
    return {"job.sbatch": "\n".join(lines)}


def _slurm_time(text: str) -> str:
    """A limit as sbatch takes it. Raises UsageError for what is none."""
    if not _SLURM_TIME.fullmatch(text):
        raise UsageError(f"--time {text!r} is no time of Slurm's; write minutes, hours:minutes:seconds, or days-hours")
    return text


def skypilot_files(groups: Groups, asked: LaunchAsked) -> dict[str, str]:
    """`task.yaml`: for `sky launch task.yaml`, all nodes alike."""
    group = alike(groups, "SkyPilot", "slurm or jobset")
    command = torchrun(
        '"$SKYPILOT_NUM_NODES"', str(group.ranks), '"$SKYPILOT_NODE_RANK"', '"$address"', str(PORT), asked.execute
    )
    resources: dict[str, object] = {}
    if group.accelerators:
        resources["accelerators"] = f"{_sky_name(group.kind)}:{group.ranks}"
    if asked.image:
        resources["image_id"] = f"docker:{asked.image}"
    if asked.restarts:
        resources["job_recovery"] = {"max_restarts_on_errors": asked.restarts}
    task = {
        "name": asked.name,
        "num_nodes": group.count,
        **({"resources": resources} if resources else {}),
        "run": f'set -euo pipefail\naddress="$(echo "$SKYPILOT_NODE_IPS" | head -n1)"\n{command}\n',
    }
    return {"task.yaml": yaml.safe_dump(task, sort_keys=False)}


def ray_files(groups: Groups, asked: LaunchAsked) -> dict[str, str]:
    """`train.py`: for `ray job submit -- python train.py`; one worker a node, which starts torchrun there."""
    group = alike(groups, "Ray", "slurm or jobset")
    resources = {"GPU": group.ranks} if group.accelerators else {"CPU": group.ranks}
    settings = {
        "nodes": group.count, "ranks": group.ranks, "resources": resources, "gpus": group.accelerators,
        "restarts": asked.restarts, "execute": list(asked.execute), "name": asked.name,
    }  # fmt: skip
    return {"train.py": RAY.replace("SETTINGS", json.dumps(settings, indent=4).replace("true", "True")
                                    .replace("false", "False"))}  # fmt: skip


RAY = '''"""Starts a plan by Ray Train: one worker a node, which runs torchrun with that node's rank."""

import os
import subprocess

import ray.train
from ray.train import FailureConfig, RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer

ASKED = SETTINGS


def start(_config):
    # Ray's torch backend puts the first worker's address here; its own group holds the port.
    address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]) + 1
    subprocess.run(
        ["torchrun", f"--nnodes={ASKED['nodes']}", f"--nproc-per-node={ASKED['ranks']}",
         f"--node-rank={ray.train.get_context().get_world_rank()}", f"--master-addr={address}",
         f"--master-port={port}", "--no-python", *ASKED["execute"]],
        check=True,
    )


TorchTrainer(
    start,
    scaling_config=ScalingConfig(
        num_workers=ASKED["nodes"], use_gpu=ASKED["gpus"], resources_per_worker=ASKED["resources"],
        placement_strategy="STRICT_SPREAD",
    ),
    run_config=RunConfig(name=ASKED["name"], failure_config=FailureConfig(max_failures=ASKED["restarts"])),
).fit()
'''


def alike(groups: Groups, launcher: str, instead: str) -> HostGroup:
    """The only group. Raises UsageError where a launcher that knows one class of nodes is asked for several."""
    if len(groups) > 1:
        kinds = ", then ".join(f"{group.count} of {group.kind} x {group.ranks}" for group in groups)
        raise UsageError(f"{launcher} starts nodes that are all alike, and the plan runs on {kinds}; use {instead}")
    return groups[0]


def _nodes(groups: Groups) -> int:
    return sum(group.count for group in groups)


def _span(group: HostGroup) -> str:
    return f"{group.first}" if group.count == 1 else f"{group.first} to {group.first + group.count - 1}"


def _ranks_of(groups: Groups, variable: str) -> str:
    """Shell that sets `ranks` to how many ranks the node of that number has."""
    if len({group.ranks for group in groups}) == 1:
        return f"ranks={groups[0].ranks}"
    cases = " ".join(f"{'|'.join(map(str, range(g.first, g.first + g.count)))}) ranks={g.ranks};;" for g in groups)
    return f'case "${variable}" in {cases} *) echo "no node of that rank" >&2; exit 2;; esac'


def _restarted(command: str, asked: LaunchAsked) -> str:
    return command.replace("torchrun ", f"torchrun --max-restarts={asked.restarts} ", 1) if asked.restarts else command


def _word(text: str, what: str) -> str:
    """A word of a comment that Slurm reads, which knows no quotes that can be trusted. Raises UsageError for others."""
    if not all(character.isalnum() or character in "-_.:," for character in text):
        raise UsageError(f"--{what} {text!r} is no word that Slurm reads; use letters, digits and - _ . : ,")
    return text


def _sky_name(kind: str) -> str:
    """SkyPilot's name of a device: the first word of the catalogue's, `H100` of `H100 80GB SXM5`."""
    words = kind.replace("-", " ").split()
    memory = next((word for word in words if word.upper().endswith("GB")), "")
    return f"{words[0]}-{memory.upper()}" if words[0] == "A100" and memory.upper() == "80GB" else words[0]
