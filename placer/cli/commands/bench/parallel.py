"""`placer bench parallel`: ways to train data-parallel side by side on this machine."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from placer.cli.options import Json, print_result
from placer.errors import UsageError, require_extra
from placer.io.files import require_writable, write_text
from placer.report.bench.parallel_analysis import analysis
from placer.report.bench.parallel_rows import Compares, Row, rows_of
from placer.report.bench.parallel_table import parallel_csv, parallel_document, parallel_markdown, parallel_view
from placer.report.bench.turns import Turn, keep, kept_turns, rewrite

if TYPE_CHECKING:
    from placer.runtime.bench.parallel import Job, Way

MOST_PROCESSES = 64
EVERY_MODEL = "resnet50,mobilenet_v2,alexnet,transformer"
# With --quick: every way and model on one and on two processes, epochs of the smallest model alone.
QUICK_PROCESSES, QUICK_ROUNDS, QUICK_STEPS, QUICK_ROWS, QUICK_SAMPLES = "1,2", 2, 2, 8, 256
QUICK_EPOCHS = {"transformer": 2}


def parallel(
    models: Annotated[str, typer.Option(help="Names separated by commas.")] = EVERY_MODEL,
    processes: Annotated[str, typer.Option(help="Numbers of processes, separated by commas.")] = "1,2,4",
    only: Annotated[str | None, typer.Option("--ways", help="Names separated by commas; default: all.")] = None,
    rows: Annotated[int, typer.Option(min=1, help="Pictures of a step and process.")] = 16,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds in which all take turns.")] = 5,
    steps: Annotated[int, typer.Option(min=1, help="Timed steps of a turn.")] = 3,
    epochs: Annotated[int, typer.Option(min=0, help="Epochs each way is trained for, with accuracy behind each.")] = 3,
    samples: Annotated[int, typer.Option(min=1, help="Pictures of an epoch.")] = 1024,
    quick: Annotated[
        bool, typer.Option("--quick", help="In under ten minutes on two cores: 1 and 2 processes, few steps.")
    ] = False,
    turns: Annotated[Path | None, typer.Option(help="Keep turns in this file, and go on from it.")] = None,
    as_csv: Annotated[Path | None, typer.Option("--csv", help="Write all rows.")] = None,
    markdown: Annotated[Path | None, typer.Option(help="Write the table and the analysis.")] = None,
    html: Annotated[Path | None, typer.Option(help="Write a page with plots that needs no network.")] = None,
    json: Json = False,
) -> None:  # fmt: skip
    """Ways to train data-parallel side by side: ms a step, speed-up, exposed communication, accuracy by epoch.

    DDP, FSDP2, DeepSpeed, Horovod, TensorFlow, a parameter server, local SGD and placer train the same models on the
    same pictures, taking turns. What cannot run says why. Exits 1 where the losses of a synchronous way are not those
    of one process.

    Example: placer bench parallel --quick --html parallel.html
    """
    _require_places(as_csv, markdown, html, turns)
    from placer.runtime.bench.parallel import MODELS, REFERENCE, WAYS, Contest, Job, compared

    names, ways = _named(models, MODELS, "--models"), _ways(only, WAYS, REFERENCE)
    job = Job(model="", ranks=1, rows=rows, steps=steps, epochs=epochs, samples=samples)
    counts = _counts(QUICK_PROCESSES if quick else processes)
    if quick:
        job, rounds = replace(job, rows=QUICK_ROWS, steps=QUICK_STEPS, samples=QUICK_SAMPLES), QUICK_ROUNDS
    jobs = tuple(_job(job, name, ranks, quick) for ranks in counts for name in names)
    known = _known(turns, jobs, rounds)
    contest = Contest(ways=ways, jobs=jobs, rounds=rounds, known={turn.key for turn in known})
    made = list(known)
    for turn in compared(contest):
        made.append(turn)
        if turns is not None:
            keep(turns, turn)
        _progress(turn)
    compares = [Compares(name=one.name, without=one.without, agrees=one.agrees) for one in ways]
    _finish(rows_of(made, compares, REFERENCE), REFERENCE, as_csv, markdown, html, json)


def _finish(
    rows: Sequence[Row], reference: str, as_csv: Path | None, markdown: Path | None, html: Path | None, json: bool
) -> None:
    told = analysis(rows, reference)
    if as_csv is not None:
        write_text(as_csv, parallel_csv(rows))
    if markdown is not None:
        write_text(markdown, parallel_markdown(rows, told))
    if html is not None:
        from placer.report.bench.parallel_page import parallel_page  # which needs Bokeh

        write_text(html, parallel_page(rows, told))
    print_result(parallel_view(rows, told), parallel_document(rows, told), json)
    if any(row.wrong for row in rows):
        raise typer.Exit(1)


def _job(job: Job, model: str, ranks: int, quick: bool) -> Job:
    return replace(job, model=model, ranks=ranks, epochs=QUICK_EPOCHS.get(model, 0) if quick else job.epochs)


def _known(path: Path | None, jobs: Sequence[Job], rounds: int) -> tuple[Turn, ...]:
    """Turns that were kept and are asked for again; those of another batch are not the same."""
    if path is None:
        return ()
    asked = {(job.model, job.ranks, job.global_rows) for job in jobs}
    kept = tuple(
        turn for turn in kept_turns(path) if (turn.model, turn.ranks, turn.rows) in asked and turn.round < rounds
    )
    rewrite(path, kept)
    return kept


def _progress(turn: Turn) -> None:
    """A line for each turn, beside the table that goes to standard output."""
    what = turn.reason or f"{turn.step_seconds * 1e3:.1f} ms a step"
    number = "epochs" if turn.round < 0 else f"round {turn.round + 1}"
    print(f"{turn.model} on {turn.ranks}, {number}, {turn.way}: {what}", file=sys.stderr, flush=True)


def _ways(text: str | None, ways: Sequence[Way], reference: str) -> tuple[Way, ...]:
    """Those that are named, and those they are compared with."""
    if text is None:
        return tuple(ways)
    named = _named(text, [one.name for one in ways], "--ways")
    needed = {reference, *named, *(one.without for one in ways if one.name in named)}
    return tuple(one for one in ways if one.name in needed)


def _named(text: str, known: Iterable[str], option: str) -> tuple[str, ...]:
    found = tuple(word.strip() for word in text.split(",") if word.strip())
    names = tuple(known)
    if not found or not set(found) <= set(names):
        raise UsageError(f"{option} is {text!r}; give some of {', '.join(names)}")
    return found


def _counts(text: str) -> tuple[int, ...]:
    try:
        found = tuple(dict.fromkeys(int(word) for word in text.split(",")))
    except ValueError:
        found = ()
    if not found or any(not 1 <= count <= MOST_PROCESSES for count in found):
        raise UsageError(f"--processes is {text!r}; give numbers from 1 to {MOST_PROCESSES}, such as 1,2,4")
    return found


def _require_places(as_csv: Path | None, markdown: Path | None, html: Path | None, turns: Path | None) -> None:
    """Raise UsageError now for what could not be written after minutes of training."""
    if html is not None:
        require_extra("html", "bokeh")
    for path in (as_csv, markdown, html, turns):
        if path is not None:
            require_writable(path)
