"""`placer execute --dry-run`: ranks of a plan run on fake tensors, each with what it sends, meets and holds."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import JsonValue
from rich.console import Group, RenderableType
from rich.text import Text

from placer.cli.options import load_plan, print_result
from placer.costs.step_estimate import estimate
from placer.errors import UsageError
from placer.plans.ledger import MemoryBytes
from placer.plans.plan import Plan
from placer.program.instructions import load_program
from placer.report.documents import Document
from placer.report.printing import bytes_text, table, titled

if TYPE_CHECKING:
    from placer.runtime.dry import DryRun
    from placer.runtime.measuring.communication_record import Communication


# So many disagreements are printed; the document has all.
SHOWN = 20


def run(plan_file: Path, cluster: str | None, rank: int | None, programs: tuple[Path, ...], json: bool) -> int:
    """Dry runs of `rank`, or of one rank of every class; the exit code: 1 where one fails."""
    from placer.runtime.dry import DryRuns, rank_classes  # the runtime needs torch; reading a plan does not

    plan = load_plan(plan_file, cluster, runs=True)
    plan = plan if plan.ledger is not None else replace(plan, ledger=estimate(plan))
    if rank is not None and rank >= plan.world_size:
        raise UsageError(f"--rank {rank}: the plan has ranks 0 to {plan.world_size - 1}; give one of them")
    given = tuple(map(load_program, programs))
    dry, classes = DryRuns(plan), rank_classes(plan)
    chosen = [next(ranks for ranks in classes if rank in ranks)] if rank is not None else list(classes)
    done: list[DryRun] = []
    for number, ranks in enumerate(chosen):
        if len(chosen) > 1:
            print(f"placer: class {number + 1} of {len(chosen)}, rank {ranks[0]}", file=sys.stderr)
        done.append(dry.of(ranks[0] if rank is None else rank, given))
    likes = [len(ranks) for ranks in chosen]
    views = [_view(one, like, plan) for one, like in zip(done, likes, strict=True)]
    print_result(Group(*views), _document(done, likes, plan), json)
    return 0 if all(one.passed for one in done) else 1


def _view(done: DryRun, like: int, plan: Plan) -> RenderableType:
    program = done.program
    title = (
        f"rank {program.rank} of {plan.world_size} on a {done.device_name}, replica {program.replica}, stages "
        f"{', '.join(map(str, program.stages))}; {like} ranks are of this class"
    )
    return Group(
        Text(title, style="bold"),
        titled("sent, received and reduced", _traffic(done)),
        *_agreement(done),
        titled("peak memory", _memory(done)),
        Text(_room(done)),
    )


def _traffic(done: DryRun) -> RenderableType:
    view = table("times", "what", "shape", "type", "bytes", "with")
    for entry, times in Counter(map(_kept, done.communications)).items():
        shape = "" if entry.shape is None else " x ".join(map(str, entry.shape)) or "one"
        view.add_row(str(times), entry.kind, shape, entry.dtype, bytes_text(entry.bytes), _ranks(entry.ranks))
    return view


def _kept(entry: Communication) -> Communication:
    """What is told of a communication: not how an all-to-all divides it."""
    return replace(entry, sent=(), received=())


def _ranks(ranks: tuple[int, ...]) -> str:
    from placer.runtime.measuring.communication_record import listed

    return f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {listed(ranks)}"


def _agreement(done: DryRun) -> Iterator[Text]:
    count, peers = len(done.communications), {rank for entry in done.communications for rank in entry.ranks}
    if not done.differences and not done.disagreements:
        yield Text(
            f"all {count} communications come in the order of its program and meet those of its "
            f"{len(peers - {done.program.rank})} peers ({len(done.inside)} of them inside its replica)"
        )
    told = [*done.differences, *map(str, done.disagreements)]
    for message in told[:SHOWN]:
        yield Text(message, style="bold red")
    if len(told) > SHOWN:
        yield Text(f"... and {len(told) - SHOWN} more; --json has all", style="bold red")


def _memory(done: DryRun) -> RenderableType:
    view = table("", "predicted", "dry run")
    for name in MemoryBytes().categories:
        predicted = getattr(done.predicted, name) if done.predicted else 0
        found = getattr(done.memory, name)
        if predicted or found:
            # What only an allocator tells apart counts in the sum below.
            view.add_row(name, bytes_text(predicted), bytes_text(found) if found else "-")
    total = done.predicted.total - done.predicted.overhead if done.predicted else 0
    view.add_row("alive at once", bytes_text(total), bytes_text(done.allocated_bytes))
    return view


def _room(done: DryRun) -> str:
    verdict = "fits" if done.fits else "does NOT fit"
    return (
        f"{bytes_text(done.needed_bytes)} with the device's own overhead: it {verdict} in "
        f"{bytes_text(done.available_bytes)}"
    )


def _document(done: list[DryRun], likes: list[int], plan: Plan) -> Document:
    ranks: list[JsonValue] = [_rank_document(one, like) for one, like in zip(done, likes, strict=True)]
    return {"world_size": plan.world_size, "passed": all(one.passed for one in done), "ranks": ranks}


def _rank_document(done: DryRun, like: int) -> Document:
    communications: list[JsonValue] = [_communication(entry) for entry in done.communications]
    disagreements: list[JsonValue] = [
        {"rank": one.rank, "peer_rank": one.peer, "what": one.what, "message": one.message}
        for one in done.disagreements
    ]
    return {
        "rank": done.program.rank,
        "device": done.device_name,
        "replica": done.program.replica,
        "stages": list(done.program.stages),
        "ranks_of_this_class": like,
        "passed": done.passed,
        "communications": communications,
        "differences": list(done.differences),
        "disagreements": disagreements,
        "memory": _bytes(done.memory),
        "predicted_memory": _bytes(done.predicted) if done.predicted else None,
        "allocated_bytes": done.allocated_bytes,
        "needed_bytes": done.needed_bytes,
        "available_bytes": done.available_bytes,
        "fits": done.fits,
    }


def _communication(entry: Communication) -> Document:
    return {
        "kind": entry.kind,
        "with_ranks": list(entry.ranks),
        "shape": None if entry.shape is None else list(entry.shape),
        "dtype": entry.dtype,
        "bytes": entry.bytes,
    }


def _bytes(memory: MemoryBytes) -> Document:
    return {f"{name}_bytes": size for name, size in (*memory.categories.items(), ("at_once", memory.total))}
