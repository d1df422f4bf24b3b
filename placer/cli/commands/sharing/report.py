"""Write a plan as one HTML page that opens without a network: layout, traffic, timeline, memory, costs, roofline.

placer report plan.json -o report.html
placer report plan.json --run run.json --search search.json -o report.html
"""

from __future__ import annotations

import json as json_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from pydantic import JsonValue, ValidationError
from rich.text import Text

from placer import legality
from placer.cli.options import ForCluster, Json, PlanFile, load_plan, print_result
from placer.errors import UsageError, require_extra
from placer.io.files import parsed_json, read_text, require_writable, write_text
from placer.report.printing import bytes_text
from placer.search.progress import SearchLog

if TYPE_CHECKING:
    from placer.report.page.measured import MeasuredRun


def run(
    plan_file: PlanFile,
    output: Annotated[Path, typer.Option("-o", "--output", help="The HTML file; `-` is standard output.")],
    run_file: Annotated[
        Path | None,
        typer.Option("--run", help="A run to put beside: what execute wrote with --report, or with --log-file."),
    ] = None,
    search_log: Annotated[
        Path | None, typer.Option("--search", help="What plan wrote with --search-log: how the search went.")
    ] = None,
    cluster: ForCluster = None,
    json: Json = False,
) -> None:
    """Read, draw, save."""
    require_writable(output)
    require_extra("html", "bokeh")
    from placer.report.page.page import report_page  # what draws is an extra

    plan = load_plan(plan_file, cluster)
    legality.require(plan)
    text = report_page(
        plan,
        None if run_file is None else measured_run(run_file),
        None if search_log is None else SearchLog.load(search_log),
    )
    write_text(output, text)
    if str(output) != "-":
        size = len(text.encode())
        print_result(Text(f"written to {output} ({bytes_text(size)})"), {"file": str(output), "bytes": size}, json)


def measured_run(path: Path) -> MeasuredRun:
    """A run from its report, or from its log, which has no ledger. Raises UsageError for another file."""
    from placer.report.page.measured import MeasuredRun

    text = read_text(path, "the run")
    if '"event"' not in text.partition("\n")[0]:
        return _reported(path, text)
    steps = [line for line in _lines(path, text) if line.get("event") == "step"]
    numbers = {
        name: tuple(float(value) for line in steps if isinstance(value := line.get(name), int | float))
        for name in ("step_seconds", "loss", "step")
    }
    if not steps or any(len(found) != len(steps) for found in numbers.values()):
        raise UsageError(f"{path} is not the log of a run: no steps with their step, loss and step_seconds are in it")
    return MeasuredRun(
        first_step=int(numbers["step"][0]) - 1, step_seconds=numbers["step_seconds"], losses=numbers["loss"]
    )


def _reported(path: Path, text: str) -> MeasuredRun:
    from placer.report.page.measured import MeasuredRun
    from placer.runtime.training.run_report import REPORT  # needs torch

    parsed_json(text, f"{path} is not the report of a run")
    try:
        found = REPORT.validate_json(text)
    except ValidationError:
        raise UsageError(
            f"{path} is neither the report nor the log of a run; make one with placer execute --report or --log-file"
        ) from None
    return MeasuredRun(
        first_step=found.first_step, step_seconds=found.step_seconds, losses=found.losses, measured=found.measured
    )


def _lines(path: Path, text: str) -> list[dict[str, JsonValue]]:
    """A document from each line; the last one may be cut off, as of a run that was killed."""
    found: list[dict[str, JsonValue]] = []
    lines = text.splitlines()
    for number, line in enumerate(lines, 1):
        try:
            document = json_module.loads(line)
        except ValueError:
            if number == len(lines) and found:
                break
            raise UsageError(f"{path} is not the log of a run: line {number} is no JSON") from None
        if isinstance(document, dict):
            found.append(document)
    return found
