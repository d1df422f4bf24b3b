"""Write the files that start a plan with the rank order it needs: by hand, on Slurm, Kubernetes, SkyPilot or Ray.

placer launch plan.json --to slurm --time 24:00:00 --checkpoint /shared/run1 -o job
placer launch plan.json --to jobset --image registry/placer:1 --volume data:/placer --plan-at /placer/plan.json -o job
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Annotated, Literal

import typer
from rich.console import Group
from rich.text import Text
from typer.main import get_command

from placer.cli.commands.running import execute
from placer.cli.options import Json, PlanFile, load_plan, print_result
from placer.errors import ExecutionError, UsageError
from placer.io.files import make_folder, write_text
from placer.plans.plan import Plan
from placer.targets.launchers.asked import LaunchAsked
from placer.targets.launchers.hosts import host_groups
from placer.targets.launchers.launch import SUBMIT, launch_files

LauncherName = Literal["torchrun", "slurm", "kubeflow", "jobset", "pytorchjob", "skypilot", "ray"]
# What a command line that cannot be read raises: click's UsageError, which lies where typer has click.
_MISUSE: type[typer.BadParameter] = typer.BadParameter.mro()[1]


def run(
    plan_file: PlanFile,
    to: Annotated[LauncherName, typer.Option(help="What starts the run.")],
    output: Annotated[Path, typer.Option("-o", "--output", help="The folder for the files.")],
    name: Annotated[str, typer.Option(help="The job's name.")] = "placer",
    plan_at: Annotated[str, typer.Option(help="Where the plan lies on the machines; default: as here.")] = "",
    checkpoint: Annotated[str, typer.Option(help="The folder of checkpoints there.")] = "",
    image: Annotated[str, typer.Option(help="The image of containers, with placer and the model in it.")] = "",
    queue: Annotated[str, typer.Option(help="Slurm's partition, Kueue's local queue.")] = "",
    time: Annotated[str, typer.Option(help="Slurm's time limit, 24:00:00.")] = "",
    restarts: Annotated[int, typer.Option(min=0, max=1000, help="How often a run that failed is started again.")] = 0,
    volume: Annotated[str, typer.Option(help="Kubernetes: a volume claim and where it is mounted, CLAIM:/path.")] = "",
    flag: Annotated[
        list[str] | None, typer.Option(help="A further word for placer execute, as in --flag=--steps --flag=1000.")
    ] = None,
    submit: Annotated[bool, typer.Option("--submit", help="Start it, too.")] = False,
    json: Json = False,
) -> None:
    """Read, write the files, say how they are started, or start them."""
    plan = load_plan(plan_file, None)
    asked = LaunchAsked(
        name=name, plan=plan_at or str(plan_file.resolve()), checkpoint=checkpoint, image=image, queue=queue, time=time,
        restarts=restarts, volume=volume, flags=tuple(flag or ()),
    )  # fmt: skip
    _require_a_run(plan, asked)
    files = launch_files(plan, to, asked)
    command = (*SUBMIT[to], next(iter(files)))
    nodes = sum(group.count for group in host_groups(plan))
    by_hand = to == "torchrun" and nodes > 1
    if submit:
        _require_startable(command[0], by_hand)
    folder = make_folder(output)
    for file, text in files.items():
        write_text(folder / file, text)
    how = "bash run.sh NODE_RANK ADDRESS on each node" if by_hand else " ".join(command)
    if submit:
        _start(command, folder)
    where = [str(folder / file) for file in files]
    told = Text(f"written: {', '.join(where)}\n{'started' if submit else 'start it'} in {folder}: {how}")
    print_result(Group(told), {"files": list(where), "command": how, "nodes": nodes, "submitted": submit}, json)


def _require_a_run(plan: Plan, asked: LaunchAsked) -> None:
    """Raises UsageError or IllegalPlanError for flags that `placer execute` refuses of `plan`, or that start no run.

    It would say so only once the job has its machines. What only they tell (files, packages) is not asked here.
    """
    from placer.runtime.training.possible import require_possible

    app = typer.Typer(add_completion=False, rich_markup_mode=None)
    app.command()(execute.run)
    words, command = list(asked.execute[2:]), get_command(app)
    if asked.checkpoint and "--checkpoint" in (flag.partition("=")[0] for flag in asked.flags):
        raise UsageError("--checkpoint was given both to launch and as --flag; leave one of them out")
    if "--help" in asked.flags:
        raise UsageError("--flag=--help starts no run; see placer execute --help")
    try:
        given = command.make_context("placer execute", words).params
    except _MISUSE as error:
        raise _refused(error.format_message()) from None
    if given["dry_run"] or given["rank"] is not None or given["program"]:
        raise UsageError("--dry-run, --rank and --program start no run; give them to placer execute before launch")
    require_possible(plan, execute.options_of(given))


def _refused(why: str) -> UsageError:
    return UsageError(
        f"placer execute refuses what --flag says: {why.rstrip('.')}; give each word a --flag of its own, as in "
        "--flag=--steps --flag=1000 (placer execute --help lists them)"
    )


def _require_startable(program: str, by_hand: bool) -> None:
    if by_hand:
        raise UsageError("run.sh is started on every node with its node rank; leave --submit out")
    if shutil.which(program) is None:
        raise UsageError(f"--submit needs {program}, which is not on this machine; start the files where it is")


def _start(command: tuple[str, ...], folder: Path) -> None:
    ended = subprocess.run(command, cwd=folder, check=False)
    if ended.returncode:
        raise ExecutionError(f"{' '.join(command)} ended with {ended.returncode}; the files are in {folder}")
