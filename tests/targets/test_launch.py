"""Files that start a plan: what they say is executed here, one torchrun for each node, and ranks lie where planned."""

from __future__ import annotations

import os
import random
import socket
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from launched_plans import ALIKE, ASKED, UNLIKE, node, plan_on

from placer.cli.commands.sharing import launch
from placer.errors import UsageError
from placer.plans.plan import Plan
from placer.targets.launchers.hosts import host_groups
from placer.targets.launchers.launch import LAUNCHERS, launch_files


@pytest.fixture
def programs(tmp_path: Path) -> Path:
    """A folder with a `placer` that tells which rank it is on which node, a `scontrol`, and an `srun` that runs its
    command as each task would be."""
    folder = tmp_path / "bin"
    folder.mkdir()
    texts = {
        "placer": 'echo "rank $RANK local $LOCAL_RANK node $GROUP_RANK of $WORLD_SIZE: $*"',
        "scontrol": "echo 127.0.0.1",
        "srun": 'while [ "$1" != bash ]; do shift; done\nfor n in $(seq 0 $((TASKS - 1))); do SLURM_NODEID=$n "$@" & '
        "done\nwait",
    }
    for name, text in texts.items():
        (folder / name).write_text(f"#!/bin/bash\n{text}\n")
        (folder / name).chmod(0o755)
    return folder


def told(
    command: list[list[str]], programs: Path, each: list[dict[str, str]] | None = None
) -> dict[int, tuple[int, int]]:
    """What the ranks told that these commands started at once: of each rank its node and its number there."""
    path = {**os.environ, "PATH": f"{programs}:{Path(sys.executable).parent}:{os.environ['PATH']}"}
    running = [
        subprocess.Popen(words, env={**path, **(each[number] if each else {})}, stdout=subprocess.PIPE, text=True)
        for number, words in enumerate(command)
    ]
    found: dict[int, tuple[int, int]] = {}
    for process in running:
        output, _ = process.communicate(timeout=1800)
        assert process.returncode == 0
        for line in output.splitlines():
            if line.startswith("rank "):
                words = line.split()
                found[int(words[1])] = int(words[5]), int(words[3])
                assert line.endswith(": execute /plans/my plan.json --steps 2")
    return found


def planned(plan: Plan) -> dict[int, tuple[int, int]]:
    """The node and the number there of each rank, by the plan."""
    on = [plan.cluster.node_of[one] for one in plan.ranks]
    nodes = list(dict.fromkeys(on))
    return {rank: (nodes.index(at), on[:rank].count(at)) for rank, at in enumerate(on)}


@pytest.mark.in_turns
@pytest.mark.parametrize("plan", [ALIKE, UNLIKE], ids=["alike", "unlike"])
def test_by_hand(plan: Plan, programs: Path, tmp_path: Path) -> None:
    script = tmp_path / "run.sh"
    script.write_text(launch_files(plan, "torchrun", ASKED)["run.sh"].replace("29500", str(free_port())))
    assert told([["bash", str(script), str(n), "127.0.0.1"] for n in (0, 1)], programs) == planned(plan)


@pytest.mark.in_turns
@pytest.mark.parametrize("plan", [ALIKE, UNLIKE], ids=["alike", "unlike"])
def test_slurm(plan: Plan, programs: Path, tmp_path: Path) -> None:
    script = tmp_path / "job.sbatch"
    text = launch_files(plan, "slurm", replace(ASKED, queue="gpu", time="1:00:00", restarts=2))["job.sbatch"]
    script.write_text(text)
    assert text.count("#SBATCH hetjob") == len(host_groups(plan)) - 1
    lists = {"SLURM_JOB_NODELIST": "n1", "SLURM_JOB_NODELIST_HET_GROUP_0": "n1"}
    each = [{**lists, "SLURM_JOB_ID": str(free_port() - 10000), "TASKS": "2"}]
    assert told([["bash", str(script)]], programs, each) == planned(plan)


def test_skypilot(programs: Path) -> None:
    task = yaml.safe_load(launch_files(ALIKE, "skypilot", ASKED)["task.yaml"])
    assert (task["num_nodes"], task["resources"]["accelerators"]) == (2, "H100:2")
    same = {"SKYPILOT_NUM_NODES": "2", "SKYPILOT_NODE_IPS": "127.0.0.1\n127.0.0.2"}
    run = task["run"].replace("29500", str(free_port()))
    each = [{**same, "SKYPILOT_NODE_RANK": str(n)} for n in (0, 1)]
    assert told([["bash", "-c", run]] * 2, programs, each) == planned(ALIKE)


@pytest.mark.in_turns
@pytest.mark.parametrize("plan", [ALIKE, UNLIKE], ids=["alike", "unlike"])
def test_jobset(plan: Plan, programs: Path) -> None:
    jobs = yaml.safe_load(launch_files(plan, "jobset", ASKED)["jobset.yaml"])["spec"]["replicatedJobs"]
    port, commands, each = str(free_port()), [], []
    for job in jobs:
        spec = job["template"]["spec"]
        (container,) = spec["template"]["spec"]["containers"]
        for index in range(spec["completions"]):
            words = [word.replace("placer-nodes0-0-0.placer", "127.0.0.1") for word in container["command"]]
            commands.append([word.replace("29500", port) for word in words])
            each.append({"JOB_COMPLETION_INDEX": str(index)})
        assert container["resources"]["limits"]["nvidia.com/gpu"].isdecimal()
    assert told(commands, programs, each) == planned(plan)


@pytest.mark.in_turns
@pytest.mark.parametrize("launcher", ["kubeflow", "pytorchjob"])
def test_what_takes_its_world_from_the_environment(launcher: str, programs: Path) -> None:
    (text,) = launch_files(ALIKE, launcher, ASKED).values()
    spec = yaml.safe_load(text)["spec"]
    if launcher == "kubeflow":
        words, ranks, nodes = spec["trainer"]["command"], spec["trainer"]["numProcPerNode"], spec["trainer"]["numNodes"]
    else:
        roles = spec["pytorchReplicaSpecs"]
        (container,) = roles["Master"]["template"]["spec"]["containers"]
        words, ranks = container["command"], int(spec["nprocPerNode"])
        nodes = sum(role["replicas"] for role in roles.values())
    pet = {"PET_NNODES": str(nodes), "PET_NPROC_PER_NODE": str(ranks), "PET_MASTER_ADDR": "127.0.0.1",
           "PET_MASTER_PORT": str(free_port())}  # fmt: skip
    assert told([words] * 2, programs, [{**pet, "PET_NODE_RANK": str(n)} for n in (0, 1)]) == planned(ALIKE)


def test_ray_starts_one_worker_a_node() -> None:
    (text,) = launch_files(ALIKE, "ray", ASKED).values()
    settings: dict[str, Any] = {}
    exec(text[text.index("ASKED = ") : text.index("def start")], settings)
    assert settings["ASKED"]["nodes"] == 2 and settings["ASKED"]["ranks"] == 2
    assert settings["ASKED"]["execute"] == list(ASKED.execute)
    compile(text, "train.py", "exec")


@pytest.mark.parametrize("launcher", ["kubeflow", "pytorchjob", "skypilot", "ray"])
def test_unlike_nodes_are_refused_where_all_are_alike(launcher: str) -> None:
    with pytest.raises(UsageError, match=r"all alike.*A100 80GB.*use .*jobset"):
        launch_files(UNLIKE, launcher, ASKED)


def test_ranks_of_a_node_that_do_not_follow_each_other_are_refused() -> None:
    torn = plan_on((node("box", 2), 2), order=(0, 2, 1, 3))
    with pytest.raises(UsageError, match="do not follow each other"):
        launch_files(torn, "slurm", ASKED)
    swapped = plan_on((node("big", 2), 1), (node("small", 1), 1), order=(2, 0, 1))
    assert [(group.node, group.ranks, group.first) for group in host_groups(swapped)] == [
        ("small", 1, 0),
        ("big", 2, 1),
    ]


@pytest.mark.parametrize("launcher", sorted(LAUNCHERS))
def test_a_hostile_path_stays_one_word(launcher: str, tmp_path: Path) -> None:
    marker = tmp_path / "marker"
    hostile = replace(ASKED, plan=f"/plans/'; touch {marker}; \"$(touch {marker})`touch {marker}`")
    (text,) = launch_files(plan_on((node("box", 1), 1)), launcher, hostile).values()
    if launcher in ("torchrun", "skypilot"):
        run = text if launcher == "torchrun" else yaml.safe_load(text)["run"]
        subprocess.run(["bash", "-c", run], env={"PATH": "/usr/bin:/bin"}, check=False, capture_output=True)
    assert not marker.exists()
    assert yaml.safe_load(text) if launcher not in ("torchrun", "slurm", "ray") else text


@pytest.mark.parametrize(("field", "value", "part"), [
    ("name", "No Name", "no name of a job"), ("plan", "a\nb", "cannot be printed"), ("volume", "data", "CLAIM:/path"),
    ("queue", "gpu;rm", "no word"), ("time", "foo", "no time of Slurm's"), ("time", "1:99:00", "no time of Slurm's"),
])  # fmt: skip
def test_what_cannot_be_written_is_refused(field: str, value: str, part: str) -> None:
    launcher = "slurm" if field in ("queue", "time") else "jobset"
    with pytest.raises(UsageError, match=part):
        launch_files(ALIKE, launcher, replace(ASKED, **{field: value}))  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="--image"):
        launch_files(ALIKE, "jobset", replace(ASKED, image=""))


@pytest.mark.parametrize("time", ["90", "90:00", "24:00:00", "2-12", "2-12:30", "2-12:30:00", "UNLIMITED"])
def test_limits_as_slurm_writes_them_are_taken(time: str) -> None:
    (text,) = launch_files(ALIKE, "slurm", replace(ASKED, time=time)).values()
    assert f"#SBATCH --time={time}\n" in text


def free_port() -> int:
    """A port between 10,000 and 30,000 that nobody listens on."""
    for port in random.sample(range(10000, 30000), 100):
        with socket.socket() as one:
            if one.connect_ex(("127.0.0.1", port)):
                return port
    raise AssertionError("no port is free")


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--stepz", "3"], "No such option: --stepz"),
        (["--steps 3"], "give each word a --flag of its own"),
        (["--steps"], "requires an argument"),
        (["--steps", "0"], "--steps"),
        (["--lr-schedule", "stairs"], "--lr-schedule"),
        (["--timeout", "-1"], "--timeout is -1.0"),
        (["--checkpoint", "there"], "--checkpoint was given both"),
        (["--dry-run"], "start no run"),
        (["--help"], "starts no run"),
        (["--steps=5", "--warmup-steps=6"], "6 warmup steps do not fit into 5"),
        (["--lr-schedule=cosine", "--final-rate=2"], "final learning rate is 2"),
        (["--eval-batches=3"], "--eval-batches 3 was given and no evaluation"),
        (["--tokenizer=words"], "--tokenizer words was given with synthetic data"),
        (["--compile-backend=aot_eager"], "--compile-backend aot_eager was given without --compile"),
        (["--final-rate=0.5"], "--final-rate 0.5 was given with --lr-schedule constant"),
        (["--synchrony=local"], "--synchrony local needs --average-every"),
        (["--own-loss"], "--own-loss was given with --synchrony synchronous"),
        (["--engine=deepspeed"], "with --engine deepspeed, which keeps its state"),
        (["--engine=deepspeed", "--compile"], "with --engine deepspeed"),
        (["--backend=gloo"], "whose tensors NCCL moves"),
    ],
)
def test_flags_that_execute_refuses_are_refused_before_a_file_is_written(
    tmp_path: Path, flags: list[str], said: str
) -> None:
    ALIKE.save(tmp_path / "plan.json")
    with pytest.raises(UsageError, match=said):
        launch.run(tmp_path / "plan.json", "torchrun", tmp_path / "job", checkpoint="here", flag=flags)
    assert not (tmp_path / "job").exists()


def test_flags_that_execute_refuses_of_a_plan_are_refused_before_a_file_is_written(tmp_path: Path) -> None:
    ALIKE.save(tmp_path / "plan.json")
    for folderless in ("--checkpoint-every=2", "--checkpoint-async", "--keep=3"):
        with pytest.raises(UsageError, match="needs a folder; give it with --checkpoint"):
            launch.run(tmp_path / "plan.json", "torchrun", tmp_path / "job", flag=[folderless])
    with pytest.raises(UsageError, match="--save-expert-loads was asked for with --engine deepspeed"):
        launch.run(
            tmp_path / "plan.json", "torchrun", tmp_path / "job",
            flag=["--engine=deepspeed", "--save-expert-loads=loads"],
        )  # fmt: skip
    replace(ALIKE, stages=tuple(replace(stage, sharding="optimizer") for stage in ALIKE.stages)).save(
        tmp_path / "sharded.json"
    )
    with pytest.raises(UsageError, match="shards its optimizer over its replicas"):
        launch.run(tmp_path / "sharded.json", "torchrun", tmp_path / "job", flag=["--synchrony=stale", "--staleness=1"])
    assert not (tmp_path / "job").exists()


def test_flags_that_execute_takes_are_written_as_they_are(tmp_path: Path) -> None:
    ALIKE.save(tmp_path / "plan.json")
    flags = ["--steps", "3", "--checkpoint=here", "--checkpoint-async", "--lr-schedule=linear", "--warmup-steps", "2"]
    launch.run(tmp_path / "plan.json", "slurm", tmp_path / "job", flag=flags)
    assert " ".join(flags) in (tmp_path / "job" / "job.sbatch").read_text()
