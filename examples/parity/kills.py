"""Kills ranks at random moments, starts the run again until it is done, and holds the end against an undisturbed run.

    python -m examples.parity.kills --kills 100 --seed 0

Plans of every kind (replicas, FSDP2, pipeline, ops cut over devices, products) train a tiny model with a checkpoint at
every step, every second plan writing them beside the steps that follow. One rank at random gets SIGKILL at a random
moment: while it starts, trains or writes. Each time

    every rank ends within LIMIT_SECONDS (`--limit` on a busy machine): by itself, or, before the first step, told to by
    SIGTERM as torchrun does;
    the next start goes on from the last complete checkpoint, and that is the last one the log says was saved
    (where they are written beside the steps: the one before it, or it);

and in the end parameters, optimizer and random states equal the undisturbed run's bit for bit. Exit 1 where not.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import random
import socket
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from multiprocessing import get_context
from multiprocessing.context import ForkProcess
from pathlib import Path
from signal import SIGKILL

import torch
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save

from examples.parity.cases import Case, capture_of, plan_of
from placer.errors import PlacerError
from placer.plans.plan import Plan
from placer.runtime.checkpoint.folder import latest, read_marker
from placer.runtime.training.execute import execute
from placer.runtime.training.run_report import ExecuteOptions

STEPS = 12
LIMIT_SECONDS = 60.0
POLL_SECONDS = 0.002
_GPT = Case(model="examples.models:tiny_gpt2", precision="float32", microbatches=(4, 4))
CASES = (
    replace(_GPT, replicas=2),
    replace(_GPT, replicas=2, sharding="parameters"),
    replace(_GPT, positions=2),
    replace(_GPT, degree=2),
    replace(_GPT, positions=2, replicas=2, sharding="gradients"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """A plan that is run in folders of its own, whether its checkpoints are written beside the steps, and the seconds
    in which all ranks end after a kill; a fourth of them is the longest that a rank waits for another."""

    name: str
    plan: Plan
    beside: bool
    limit: float


@dataclass(kw_only=True)
class Tally:
    """What was counted, and every claim that did not hold, in words."""

    kills: Counter[str] = field(default_factory=Counter)
    resumptions: int = 0
    named: int = 0
    slowest_end: float = 0.0
    compared: int = 0
    wrong: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class Undisturbed:
    """The end of a run that nobody disturbed, and its pace (seconds)."""

    state: dict[str, object]
    start_seconds: float
    step_seconds: float


class Attempt:
    """The ranks of one start, forked from this process, their log and what they printed."""

    def __init__(self, trial: Trial, folder: Path, number: int) -> None:
        self.limit = trial.limit
        self.folder, self.log, self.printed = folder, folder / f"log{number}.jsonl", folder / f"printed{number}.txt"
        self.log.touch()
        options = ExecuteOptions(
            steps=STEPS, checkpoint=str(folder / "checkpoints"), checkpoint_every=1, checkpoint_async=trial.beside,
            log=str(self.log), progress=False, timeout_seconds=trial.limit / 4,
        )  # fmt: skip
        fork, port = get_context("fork"), _free_port()
        self.ranks: list[ForkProcess] = []
        for rank in range(trial.plan.world_size):
            process = fork.Process(target=_rank, args=(trial.plan, options, rank, port, self.printed))
            process.start()
            self.ranks.append(process)

    def events(self, kind: str) -> list[int]:
        """The steps of the events of a kind so far."""
        lines = (line for line in self.log.read_text().split("\n")[:-1])
        return [event["step"] for event in map(json.loads, lines) if event["event"] == kind]

    def wait(self, done: Callable[[], bool]) -> None:
        """Until `done`, a rank has ended, or the limit has passed."""
        until = time.monotonic() + 2 * self.limit
        while not done() and self.running() and time.monotonic() < until:
            time.sleep(POLL_SECONDS)

    def finish(self) -> list[int]:
        """Until the last step is done, however slow the machine is, then as `end`."""
        self.wait(lambda: len(self.events("step")) >= STEPS)
        return self.end()

    def running(self) -> bool:
        """Whether every rank still runs."""
        return all(process.is_alive() for process in self.ranks)

    def end(self, *, told: bool = False) -> list[int]:
        """Ranks that did not end within the limit, `told` to or by themselves; they are ended here."""
        for process in self.ranks if told else ():
            process.terminate()
        until = time.monotonic() + self.limit
        for process in self.ranks:
            process.join(max(0.0, until - time.monotonic()))
        left = [rank for rank, process in enumerate(self.ranks) if process.is_alive()]
        for rank in left:
            self.ranks[rank].kill()
            self.ranks[rank].join()
        return left


def main() -> None:
    """Parse, run, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0, help="chooses plans, ranks and moments")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="no kill after so many seconds")
    parser.add_argument(
        "--limit", type=float, default=LIMIT_SECONDS, help="seconds in which all ranks end after a kill"
    )
    given = parser.parse_args()
    tally = kill_often(given.kills, given.seed, given.seconds, limit=given.limit)
    print(summary(tally))
    sys.exit(bool(tally.wrong) or not sum(tally.kills.values()))


def kill_often(kills: int, seed: int, seconds: float = float("inf"), *, limit: float = LIMIT_SECONDS) -> Tally:
    """Kill `kills` ranks over all plans, fewer where `seconds` pass first; every run that was begun is finished."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    torch.set_num_threads(1)
    chance, tally, until = random.Random(seed), Tally(), time.monotonic() + seconds
    known: dict[str, Undisturbed] = {}
    trials = [Trial(name=str(case), plan=plan_of(case), beside=False, limit=limit) for case in CASES]
    trials += [replace(trial, name=f"{trial.name} beside", beside=True) for trial in trials]
    chance.shuffle(trials)
    wanted: Callable[[], bool] = lambda: sum(tally.kills.values()) < kills and time.monotonic() < until  # noqa: E731
    while wanted():
        trial = trials.pop(0)
        trials.append(trial)
        capture_of(trial.plan)  # ranks are forked from this process and have it
        with tempfile.TemporaryDirectory() as folder:
            if trial.name not in known:
                known[trial.name] = undisturbed(trial, Path(folder))
        with tempfile.TemporaryDirectory() as folder:
            disturbed(trial, Path(folder), known[trial.name], chance, tally, wanted)
        print(f"{sum(tally.kills.values())} kills, {len(tally.wrong)} wrong: {trial.name}", flush=True)
    return tally


def undisturbed(trial: Trial, folder: Path) -> Undisturbed:
    """Run it once to the end. Raises PlacerError where it does not get there."""
    began = time.monotonic()
    attempt = Attempt(trial, folder, 0)
    attempt.wait(lambda: bool(attempt.events("step")))
    first = time.monotonic()
    attempt.finish()
    pace = (time.monotonic() - first) / STEPS
    return Undisturbed(state=_final_state(attempt), start_seconds=first - began, step_seconds=pace)


def disturbed(
    trial: Trial, folder: Path, known: Undisturbed, chance: random.Random, tally: Tally, wanted: Callable[[], bool]
) -> None:
    """Start, kill and start again until the run is done; then compare."""
    number, killed = 0, False
    while True:
        before = _last_step(folder)
        attempt = Attempt(trial, folder, number)
        struck = _strike(attempt, known, chance, tally) if wanted() else None
        if struck is None:
            attempt.finish()
        began = time.monotonic()
        left = attempt.end(told=struck is not None and not attempt.events("step"))
        if struck is not None:
            tally.slowest_end = max(tally.slowest_end, time.monotonic() - began)
            tally.named += f"rank {struck} died" in attempt.printed.read_text()
        where = f"{trial.name}, start {number}"
        _judge(attempt, where, before, left, struck, tally, beside=trial.beside)
        tally.resumptions += killed and bool(attempt.events("step"))
        if struck is None:
            break
        number, killed = number + 1, True
    tally.compared += 1
    tally.wrong += [f"{trial.name}: {text}" for text in _differences(known.state, _final_state(attempt))]


def _strike(attempt: Attempt, known: Undisturbed, chance: random.Random, tally: Tally) -> int | None:
    """Kill a random rank at a random moment: the rank, or None where the run was over before."""
    steps, victim = chance.choice((0, 1, 1, 2, 2, 3, 3)), chance.randrange(len(attempt.ranks))
    pause = chance.uniform(0, known.step_seconds if steps else known.start_seconds)
    attempt.wait(lambda: len(attempt.events("step")) >= steps)
    until = time.monotonic() + pause
    attempt.wait(lambda: time.monotonic() >= until)
    process = attempt.ranks[victim]
    if not attempt.running() or process.pid is None:
        return None
    writing, begun = any(attempt.folder.glob("checkpoints/*.partial")), bool(attempt.events("step"))
    process.kill()
    process.join()
    if process.exitcode != -SIGKILL:
        return None
    tally.kills["writing" if writing else "training" if begun else "starting"] += 1
    return victim


def _judge(
    attempt: Attempt, where: str, before: int, left: list[int], struck: int | None, tally: Tally, *, beside: bool
) -> None:
    """Hold one attempt against the claims; `before` is the last complete step before it began."""
    steps, saved, after = attempt.events("step"), attempt.events("checkpoint"), _last_step(attempt.folder)
    if left:
        tally.wrong.append(f"{where}: ranks {left} did not end within {attempt.limit:.0f} s of the kill of {struck}")
    if steps and (steps[0] != before + 1 or attempt.events("resumed") != [before] * (before > 0)):
        tally.wrong.append(f"{where}: went on at step {steps[0]}, the last complete checkpoint was of step {before}")
    if saved and after < saved[-1] - beside:
        tally.wrong.append(f"{where}: the log says that step {saved[-1]} was saved, the last complete one is {after}")
    if after < before:
        tally.wrong.append(f"{where}: the checkpoint of step {before} is lost, the last one is {after}")
    if struck is None and any(process.exitcode for process in attempt.ranks):
        codes = [process.exitcode for process in attempt.ranks]
        tally.wrong.append(f"{where}: nobody was killed, the ranks ended with {codes}: {_tail(attempt)}")


def summary(tally: Tally) -> str:
    """The counts, and what was wrong."""
    kills = sum(tally.kills.values())
    moments = ", ".join(f"{count} while {moment}" for moment, count in sorted(tally.kills.items()))
    lines = [
        f"kills {kills} ({moments}); a surviving rank named the killed one in {tally.named}",
        f"resumptions {tally.resumptions}, killed again before their first step {kills - tally.resumptions}",
        f"slowest end of all ranks after a kill {tally.slowest_end:.1f} s",
        f"runs compared with undisturbed ones {tally.compared}, mismatches {len(tally.wrong)}",
    ]
    return "\n".join([*lines, *tally.wrong])


def _rank(plan: Plan, options: ExecuteOptions, rank: int, port: int, printed: Path) -> None:
    with printed.open("ab") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    # As for ranks of a pool: what the parent left is not this one's to collect (a collection of it has ended in torch).
    gc.freeze()
    os.environ |= {
        "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(plan.world_size),
        "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "GLOO_SOCKET_IFNAME": "lo",
    }  # fmt: skip
    try:
        execute(plan, options, capture=capture_of(plan))
    except PlacerError as error:
        print(f"placer (rank {rank}): {error}", file=sys.stderr, flush=True)
        sys.exit(error.exit_code)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _last_step(folder: Path) -> int:
    path = latest(folder / "checkpoints")
    return read_marker(path).step if path else 0


def _final_state(attempt: Attempt) -> dict[str, object]:
    """Every leaf of the last checkpoint. Raises PlacerError where the run did not get to its end."""
    path = latest(attempt.folder / "checkpoints")
    if path is None or _last_step(attempt.folder) != STEPS:
        raise PlacerError(f"the run in {attempt.folder} did not get to step {STEPS}; it says {_tail(attempt)}")
    whole = attempt.folder / "whole.pt"
    dcp_to_torch_save(path, whole)
    return dict(_leaves("", torch.load(whole, weights_only=True)))


def _leaves(name: str, value: object) -> list[tuple[str, object]]:
    if isinstance(value, dict):
        return [leaf for key, inner in value.items() for leaf in _leaves(f"{name}/{key}", inner)]
    return [(name, value)]


def _differences(expected: dict[str, object], found: dict[str, object]) -> list[str]:
    """Leaves that are not the same bit for bit."""
    if expected.keys() != found.keys():
        return [f"other names: {sorted(expected.keys() ^ found.keys())[:5]}"]
    return [f"{name} differs" for name, value in expected.items() if not _equal(value, found[name])]


def _equal(a: object, b: object) -> bool:
    if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor):
        return a.dtype == b.dtype and torch.equal(a, b)
    return bool(a == b)


def _tail(attempt: Attempt) -> str:
    return attempt.printed.read_text()[-1500:] if attempt.printed.exists() else "nothing"


if __name__ == "__main__":
    main()
