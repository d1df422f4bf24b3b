"""A search that can be ended and gone on with: its islands after their last epoch, in a file.

In: the problem, whose `resume` names the file. It is JSON, written whole or not at all after every epoch, says of which
search it is and what digest it has. A file of another search, or one that somebody has changed, is refused. A budget is
no part of what a search is: with a larger one it goes on.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

from pydantic import TypeAdapter, ValidationError

from placer.cluster.cluster import Cluster
from placer.errors import UsageError
from placer.graph import Graph
from placer.io.files import parsed_json, read_text, write_text
from placer.io.refusals import refused, short
from placer.io.versions import digest as text_digest
from placer.io.versions import installed
from placer.plans.document import DIGEST, digest
from placer.plans.plan import Seed
from placer.plans.settings import RunSettings
from placer.search.asked import pin_texts
from placer.search.problem import Problem
from placer.strategies.genetic.islands import Archipelago

FORMAT = 1
WORDS = {
    "placer": "placer's version", "graph": "the model or its batch", "cluster": "the cluster",
    "settings": "the settings of the run", "pins": "the pins", "seed": "the seed", "islands": "the number of islands",
}  # fmt: skip
DIGESTS = ("graph", "cluster", "settings")


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchAsked:
    """What makes a search that search: graph, cluster and settings by their digests."""

    placer: str
    graph: str
    cluster: str
    settings: str
    pins: tuple[str, ...]
    seed: Seed
    islands: int


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptSearch:
    """What the file says."""

    format: int
    asked: SearchAsked
    state: Archipelago


def kept(problem: Problem) -> Archipelago | None:
    """The islands that the problem's file keeps; None where there is none yet. Raises UsageError for another file."""
    path = problem.resume
    if path is None or not path.exists():
        return None
    found = _read(read_text(path, "the kept search"), f"{path} keeps no search")
    asked = _asked(problem, problem.islands or len(found.state.islands))
    differ = _differences(found.asked, asked)
    if differ:
        raise UsageError(
            f"{path} keeps another search than the one asked for, by {'; '.join(differ)}; ask as for that one, or name "
            "another file to begin anew"
        )
    return found.state


def keep(problem: Problem, state: Archipelago) -> None:
    """Write the islands into the problem's file, if it names one and they have any plans."""
    if problem.resume is None or not any(island.people for island in state.islands):
        return
    search = KeptSearch(format=FORMAT, asked=_asked(problem, len(state.islands)), state=state)
    document = KEPT.dump_python(search, mode="json")
    write_text(problem.resume, json.dumps(document | {DIGEST: digest(document)}) + "\n")


def _read(text: str, what: str) -> KeptSearch:
    """What `keep` wrote. Raises UsageError that begins with `what` for anything else."""
    again = "name the file of a search, or one that does not exist yet"
    try:
        document = parsed_json(text, what)
    except UsageError as error:
        raise UsageError(f"{error}; {again}") from None
    if not isinstance(document, dict) or "format" not in document or "state" not in document:
        raise UsageError(f"{what}: it has no format and no state; {again}")
    if document["format"] != FORMAT:
        raise UsageError(
            f"{what} that this placer reads: its format is {short(document['format'])}, not {FORMAT}; {again}"
        )
    if document.pop(DIGEST, None) != digest(document):
        raise UsageError(f"{what} as placer wrote it: somebody changed it since; {again}")
    try:
        return KEPT.validate_python(document)
    except ValidationError as error:
        raise UsageError(f"{what}: {refused(error)}; {again}") from None


def _asked(problem: Problem, islands: int) -> SearchAsked:
    return SearchAsked(
        placer=installed("placer-planner"),
        graph=text_digest(TypeAdapter(Graph).dump_json(problem.graph).decode()),
        cluster=text_digest(TypeAdapter(Cluster).dump_json(problem.cluster).decode()),
        settings=text_digest(TypeAdapter(RunSettings).dump_json(problem.settings).decode()),
        pins=pin_texts(problem.pins),
        seed=problem.seed,
        islands=islands,
    )


def _differences(found: SearchAsked, asked: SearchAsked) -> list[str]:
    """What differs, with what the file has of it where that is no digest."""
    here, there = asdict(found), asdict(asked)
    return [
        words
        if name in DIGESTS
        else short(f"{words} ({_plain(here[name])} there, {_plain(there[name])} asked for)", 400)
        for name, words in WORDS.items()
        if here[name] != there[name]
    ]


def _plain(value: object) -> str:
    return (", ".join(map(str, value)) or "none") if isinstance(value, tuple) else str(value)


KEPT: TypeAdapter[KeptSearch] = TypeAdapter(KeptSearch)
