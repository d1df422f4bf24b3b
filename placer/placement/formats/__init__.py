"""The files placement problems come in: a table, format -> the function that reads it.

A reader takes the text of a file, its name for messages, and what the command line adds to the file; it returns a
problem whose `format` names the solver that takes it (placer.search.PLACERS). A new format is one line in each table.
"""

from __future__ import annotations

import importlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from placer.errors import UsageError
from placer.io.files import read_text

# format -> where it is read
READERS = {
    "dnn-partitioning": "placer.placement.formats.dnn_partitioning:read",
    "pipedream": "placer.placement.formats.pipedream:read",
    "piper": "placer.placement.formats.piper:read",
    "doppler": "placer.placement.formats.doppler:read",
}

# The strategy that proves how good its placement is.
EXACT = "exact"
OBJECTIVES = ("throughput", "latency", "makespan")


@dataclass(frozen=True, slots=True, kw_only=True)
class PlaceRequest:
    """What is asked of a file beside what it says; None leaves it to the file or to the format's default.

    `devices` is the number of accelerators, `memory` bytes of each, `bandwidth` bytes/second between them. `budget`
    (evaluations of a device's load) and `seconds` end a search that has not ended by itself; it returns what it has
    with the bound proved so far. `strategy`: EXACT, a search without a proof, a list scheduler or a partitioner by
    name; `seed` is what searches that draw begin with.
    """

    objective: str | None = None
    free_form: bool = False
    devices: int | None = None
    memory: float | None = None
    bandwidth: float | None = None
    microbatches: int | None = None
    budget: int | None = None
    seconds: float | None = None
    strategy: str = EXACT
    seed: int = 0

    def __post_init__(self) -> None:
        if self.objective not in (None, *OBJECTIVES):
            raise UsageError(f"there is no objective {self.objective!r}; known: {', '.join(OBJECTIVES)}")
        counts = (("devices", self.devices), ("microbatches", self.microbatches), ("evaluations", self.budget))
        for what, value in counts:
            if value is not None and value < 1:
                raise UsageError(f"a placement was asked for with {value} {what}; give at least 1")
        if self.seed < 0:
            raise UsageError(f"a placement was asked for with the seed {self.seed}; give 0 or more")
        for what, amount in (("memory", self.memory), ("bandwidth", self.bandwidth), ("seconds", self.seconds)):
            if amount is not None and not amount > 0:
                raise UsageError(f"a placement was asked for with {what} {amount}; give more than 0")

    def require_no_more_than(self, *used: str, of: str) -> None:
        """Raise UsageError for what was given beside a file whose format has no use for it: it would change nothing."""
        for what, given in (("bandwidth", self.bandwidth), ("microbatches", self.microbatches)):
            if given is not None and what not in used:
                raise UsageError(f"--{what} was given, and nothing in {of} files depends on it; leave it out")


class FileProblem(Protocol):
    """What every reader returns: a value whose `format` names its solver."""

    @property
    def format(self) -> str:
        """The key of the solver in placer.search.PLACERS."""
        ...


class Reader(Protocol):
    """Reads one format. Raises UsageError with the file, the line or field, and what to do."""

    def __call__(self, text: str, name: str, request: PlaceRequest) -> FileProblem:
        """The problem that `text`, the content of the file `name`, describes."""
        ...


def read_problem(path: Path, request: PlaceRequest, *, format: str | None = None) -> FileProblem:
    """The problem in the file `path`, its format recognised unless given. Raises UsageError for what it cannot read."""
    text = read_text(path, "the placement problem")
    return reader(format or recognised(text, str(path)))(text, str(path), request)


def reader(format: str) -> Reader:
    """The reader of `format`. Raises UsageError listing the known ones."""
    if format not in READERS:
        raise UsageError(f"there is no placement format {format!r}; known: {', '.join(READERS)}")
    module, attribute = READERS[format].split(":")
    made: Reader = getattr(importlib.import_module(module), attribute)
    return made


def recognised(text: str, name: str) -> str:
    """Which format `text` is in. Raises UsageError where it is none of the known ones."""
    start = text.lstrip()[:1]
    if start in ("{", "["):
        return _json_format(parsed_json(text, name), name)
    if " -- " in text:
        return "pipedream"
    head = [line.strip() for line in text.splitlines()[:2]]
    if len(head) == 2 and head[0].isdigit() and "," in head[1]:
        return "doppler"
    raise UsageError(
        f"{name} is in no format that placer reads: it is neither JSON nor lines of the form 'node -- description -- "
        "forward_compute_time=...', nor a number of nodes and lists of numbers; known formats: "
        f"{', '.join(READERS)} (name one with --format)"
    )


def parsed_json(text: str, name: str) -> object:
    """The JSON value in `text`. Raises UsageError with the line where it breaks."""
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise UsageError(f"{name}, line {error.lineno}, column {error.colno}: no JSON ({error.msg}); mend it") from None


def _json_format(value: object, name: str) -> str:
    """By the fields that only one format has."""
    if isinstance(value, dict):
        nodes = value.get("nodes")
        first = nodes[0] if isinstance(nodes, list) and nodes else None
        if isinstance(first, dict) and "TMPCs" in first:
            return "piper"
        if "maxFPGAs" in value or (isinstance(first, dict) and "fpgaLatency" in first):
            return "dnn-partitioning"
    raise UsageError(
        f"{name} is JSON in no format that placer reads: a dnn-partitioning file has the fields maxFPGAs, maxCPUs, "
        f"maxSizePerFPGA, nodes and edges; known formats: {', '.join(READERS)} (name one with --format)"
    )
