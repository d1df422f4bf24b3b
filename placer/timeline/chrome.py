"""chrome_trace(slices): the trace event format (JSON object form), as chrome://tracing and ui.perfetto.dev read it.

A rank is a process (pid), a lane a thread (tid), a slice a complete event ("X") with a nested one for each of its parts
where it has several; a message is a flow ("s", "f") from the sender's slice to the receiver's. Times are microseconds,
rounded to whole nanoseconds at both ends, so that what touches still touches and what nests still nests.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from placer.timeline.slices import Slice

# The order in which lanes are shown.
LANES = ("compute", "send", "receive", "collective")

Event = dict[str, object]


def chrome_trace(slices: Sequence[Slice], stands_for: Mapping[int, int]) -> str:
    """The JSON text; `stands_for` gives for each rank how many ranks of the plan do the same."""
    events = [*_names(stands_for)]
    for entry in slices:
        events += _events(entry)
    return json.dumps({"traceEvents": events, "displayTimeUnit": "ms"})


def _names(stands_for: Mapping[int, int]) -> Iterator[Event]:
    for rank, count in stands_for.items():
        name = f"rank {rank}" if count == 1 else f"rank {rank} (as {count} ranks)"
        yield {"name": "process_name", "ph": "M", "pid": rank, "tid": 0, "args": {"name": name}}
        yield {"name": "process_sort_index", "ph": "M", "pid": rank, "tid": 0, "args": {"sort_index": rank}}
        for tid, lane in enumerate(LANES):
            yield {"name": "thread_name", "ph": "M", "pid": rank, "tid": tid, "args": {"name": lane}}
            yield {"name": "thread_sort_index", "ph": "M", "pid": rank, "tid": tid, "args": {"sort_index": tid}}


def _events(entry: Slice) -> Iterator[Event]:
    yield _complete(entry, entry.name, entry.start, entry.end)
    if len(entry.parts) > 1:
        start = entry.start
        for part in entry.parts:
            end = min(entry.end, start + part.seconds)
            yield _complete(entry, part.kind, start, end)
            start = end
    if entry.message >= 0:
        sending = entry.lane == "send"
        flow: Event = {"name": "message", "cat": "message", "ph": "s" if sending else "f", "id": entry.message}
        yield flow | _where(entry) | {"ts": _microseconds(entry.start)} | ({} if sending else {"bp": "e"})


def _complete(entry: Slice, name: str, start: float, end: float) -> Event:
    since, until = _nanoseconds(start), _nanoseconds(end)
    timing: Event = {"ts": since / 1000, "dur": (until - since) / 1000}
    return {"name": name, "cat": entry.lane, "ph": "X"} | _where(entry) | timing


def _where(entry: Slice) -> Event:
    return {"pid": entry.rank, "tid": LANES.index(entry.lane)}


def _nanoseconds(seconds: float) -> int:
    return round(seconds * 1e9)


def _microseconds(seconds: float) -> float:
    return _nanoseconds(seconds) / 1000
