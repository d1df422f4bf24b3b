"""How many files a reader crosses who follows a call through the house: three walks, counted from call traces.

    python -m tests.house.walks [--list] [estimate solve execute]      (in the root of a checkout; about a minute)

The walks:
  estimate  `placer.estimate(plan)`, of a plan read from its file
  solve     `Stages.solve(problem)`: the strategy "stages" on the same graph and machines, without pins
  execute   rank 0 of two in `placer execute plan.json --steps 2` under torchrun, from the command line to its last word
The model is the README's (`examples.gpt`, 8 rows of 128 tokens), the machine two made-up processors, the plan two
stages and two microbatches, so that nothing depends on the machine this runs on. Each walk has a process of its own.

The rule:
  step     the first entry of a function in the main thread, in the order of these entries. A function is what `def`
           makes at the top of a module or in a class (methods, properties, an `__init__` that is written down). What is
           inside of a function (nested ones, lambdas, comprehensions) is part of it; what a decorator generates has no
           file. Functions of placer, strategies and runtime count, those of libraries do not, nor does what is called
           while a module is imported. Going back to a caller is no step, nor is a second call.
  stay     as many steps as follow each other in one file
  entered  files of the walk; a file counts once, by its real path
  returns  stays in a file that was already left: stays - entered
Only public names are taken, so that the numbers from before and after files move are comparable.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from inspect import CO_OPTIMIZED
from itertools import groupby
from pathlib import Path
from types import CodeType, FrameType
from typing import TypeAlias

WALKS = ("estimate", "solve", "execute")
FOLDERS = ("placer", "strategies", "runtime")  # the project's, in the root
CLUSTER = """
name: two made-up processors
devices:
  processor:
    backend: cpu
    memory: 8 GiB
    memory_bandwidth: 20 GB/s
    rates: {float32: 100 GFLOP/s}
    launch: 5 us
    efficiency: {points: [[100 kFLOP, 10%], [10 MFLOP, 70%], [1 GFLOP, 95%]]}
nodes:
  - {name: host, devices: [{kind: processor, count: 2}], link: {latency: 60 us, bandwidth: 2 GB/s}}
"""
TORCHRUN = (
    "-m", "torch.distributed.run", "--nproc-per-node", "2", "--rdzv-backend", "c10d", "--rdzv-endpoint", "127.0.0.1:0",
    "--local-addr", "127.0.0.1",
)  # fmt: skip

Step: TypeAlias = tuple[str, str]  # file, function


class Recorder:
    """Records the steps of what is called inside of `with`; None stands for what is no function of the project's."""

    def __init__(self, root: Path) -> None:
        self.root, self.importing = root, 0
        self.seen: dict[CodeType, Step | None] = {}

    def __enter__(self) -> None:
        sys.setprofile(self._event)

    def __exit__(self, *raised: object) -> None:
        sys.setprofile(None)

    def _event(self, frame: FrameType, event: str, argument: object) -> None:
        code = frame.f_code
        if code.co_name == "<module>":
            self.importing += {"call": 1, "return": -1}.get(event, 0)
        elif event == "call" and not self.importing and code not in self.seen:
            self.seen[code] = self._step(code)

    def _step(self, code: CodeType) -> Step | None:
        path = Path(os.path.realpath(code.co_filename))
        if "<" in code.co_qualname or not code.co_flags & CO_OPTIMIZED or not path.is_relative_to(self.root):
            return None
        file = path.relative_to(self.root)
        return (str(file), code.co_qualname) if file.parts[0] in FOLDERS else None


def made_ready(walk: str, folder: Path) -> Callable[[], object]:
    """What is followed, with all that comes before it done; of "plan", what makes the plan the walks are given."""
    import placer
    from placer.__main__ import main as command
    from placer.search.problem import strategy

    cluster, file = folder / "cluster.yaml", folder / "plan.json"
    if walk == "plan":
        cluster.write_text(CLUSTER)
        shapes, pins = {"input_ids": (8, 128), "labels": (8, 128)}, ("pipeline=2", "microbatches=2", "schedule=1f1b")
        return lambda: placer.plan("examples.gpt:build", str(cluster), batch=shapes, pins=pins).save(file)
    if walk == "execute":
        sys.argv = ["placer", "execute", str(file), "--steps", "2"]
        return command
    plan, estimate, solver = placer.Plan.load(file), placer.estimate, strategy("stages")
    given = {name: getattr(plan, name) for name in ("graph", "cluster", "settings", "model", "rows")}
    problem = placer.Problem(**given)
    return (lambda: estimate(plan)) if walk == "estimate" else (lambda: solver.solve(problem))


def follow(walk: str, folder: Path) -> None:
    """Walk, and leave the steps in the folder; of several ranks the first does."""
    call, recorder = made_ready(walk, folder), Recorder(Path.cwd().resolve())
    try:
        with recorder:
            call()
    except SystemExit as ended:
        if ended.code:
            raise
    if os.environ.get("RANK", "0") == "0":
        (folder / walk).write_text(json.dumps([step for step in recorder.seen.values() if step]))


def followed(walk: str, folder: Path) -> list[Step]:
    """The steps of a walk in a process of its own, or in two ranks; raises where it fails."""
    here = {"PYTHONPATH": os.getcwd(), "PYTHONSAFEPATH": "1", "PYTHONHASHSEED": "0", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, *(TORCHRUN if walk == "execute" else ()), __file__, walk, "--folder", str(folder)]
    done = subprocess.run(command, env={**os.environ, **here}, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{walk} failed:\n{done.stdout}{done.stderr}")
    return [(file, function) for file, function in json.loads((folder / walk).read_text())]


def shown(walk: str, steps: Sequence[Step], *, listed: bool) -> str:
    """The numbers of a walk, and where asked its stays, `again` before returns."""
    stays = [(file, [function for _, function in group]) for file, group in groupby(steps, lambda step: step[0])]
    entered, left = len({file for file, _ in stays}), set[str]()
    lines = [f"{walk}: {entered} files entered / {len(stays)} stays / {len(stays) - entered} returns"]
    for file, functions in stays if listed else ():
        lines.append(f"  {'again ' if file in left else '      '}{file}: {', '.join(functions)}")
        left.add(file)
    return "\n".join(lines)


def main() -> None:
    """Print the walks that are asked for, or all."""
    parser = argparse.ArgumentParser(description="Three walks through the house, in files, stays and returns.")
    parser.add_argument("walks", nargs="*", metavar="WALK", help=f"of {', '.join(WALKS)}; all where none is given")
    parser.add_argument("--list", action="store_true", help="print every stay: its file and its functions")
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)  # of a process that walks
    given = parser.parse_args()
    if given.folder:
        follow(given.walks[0], given.folder)
        return
    if unknown := set(given.walks) - set(WALKS):
        parser.error(f"there is no walk {min(unknown)!r}; known: {', '.join(WALKS)}")
    with tempfile.TemporaryDirectory() as name:
        followed("plan", Path(name))
        for walk in given.walks or WALKS:
            print(shown(walk, followed(walk, Path(name)), listed=given.list), flush=True)


if __name__ == "__main__":
    main()
