"""Price lists: what machines may be rented, at how many dollars an hour, from a YAML file or the catalogue's own.

name: list of ours
machines:
  p5:
    cluster: h100x8@p5          # one machine, as for --cluster; of files nodes.yaml, or nodes-{count}.yaml
    dollars_per_hour: 55.04     # of one machine
    counts: [1, 2, 4]           # how many are tried
    date: "2026-11-09"          # when the price was read, and where
    source: us-east-1, ...
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from placer.cluster.catalogue import load_cluster
from placer.cluster.cluster import Cluster
from placer.cluster.schema import Count
from placer.errors import NoNetworkError, UsageError
from placer.io.bounds import AmountAboveZero
from placer.io.files import read_text
from placer.io.yaml_document import YamlDocument, close, parse, validated

FILES = (".yaml", ".yml", ".json")
COUNT = "{count}"


class MachineEntry(BaseModel):
    """A kind of machine of a price list."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    cluster: str
    dollars_per_hour: AmountAboveZero
    counts: tuple[Count, ...] = Field(default=(1,), min_length=1)
    date: Annotated[str, BeforeValidator(str)] = ""
    source: str = ""


class PriceList(BaseModel):
    """Machines by name."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    name: str = ""
    machines: dict[str, MachineEntry] = Field(min_length=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """So many machines of a kind; `dollars_per_hour` of all of them."""

    machine: str
    count: int
    cluster: Cluster
    dollars_per_hour: float
    date: str = ""
    source: str = ""


def read_offers(
    path: str | None, *, counts: Sequence[int] = (), machines: Sequence[str] = (),
    left_out: Callable[[str], None] | None = None,
) -> tuple[Offer, ...]:  # fmt: skip
    """Every machine and count of the list at `path`, or of the catalogue's, in the order of the list.

    counts: instead of the list's own. machines: only those of these names. left_out: hears why machines that nothing
    joins are left out, where others are not. Raises UsageError naming file, line and field, for a name the list has
    not, and for machines that nothing joins where nobody hears of it or there are no others.
    """
    document = _document(path)
    listed = validated(document, PriceList).machines
    unknown = next((name for name in machines if name not in listed), None)
    if unknown is not None:
        raise UsageError(f"{document.path} has no machine {unknown!r}; {close(unknown, tuple(listed))}")
    folder = Path(path).parent if path else Path()
    found, apart = list[Offer](), list[NoNetworkError]()
    for name in (name for name in listed if not machines or name in machines):
        for count in counts or listed[name].counts:
            try:
                found.append(_offer(document, folder, name, listed[name], count))
            except NoNetworkError as error:
                apart.append(error)
    if apart and (left_out is None or not found):
        raise apart[0]
    if left_out is not None:
        for why in apart:
            left_out(f"left out: {why}")
    return tuple(found)


def _document(path: str | None) -> YamlDocument:
    if path is not None:
        return parse(read_text(path, "the price list"), path)
    text = files("placer.cluster").joinpath("hardware", "prices.yaml").read_text(encoding="utf-8")
    return parse(text, "placer/hardware/prices.yaml")


def _offer(document: YamlDocument, folder: Path, name: str, entry: MachineEntry, count: int) -> Offer:
    try:
        cluster = load_cluster(_spec(folder, entry.cluster, count))
    except UsageError as error:
        line = document.line(("machines", name, "cluster"))
        raise type(error)(f"{document.path}, line {line}: {count} x {name}: {error}") from None
    return Offer(
        machine=name, count=count, cluster=cluster, dollars_per_hour=count * entry.dollars_per_hour,
        date=entry.date, source=entry.source,
    )  # fmt: skip


def _spec(folder: Path, one: str, count: int) -> str:
    """What `count` machines are, each of which is `one`, as Cluster.load reads it."""
    given = one.replace(COUNT, str(count))
    if given.lower().endswith(FILES):
        if count > 1 and COUNT not in one:
            raise UsageError(
                f"{one} describes one cluster, {count} of it were asked for; name a file for each count, as in "
                f"nodes-{COUNT}.yaml"
            )
        return str(folder / given)
    name, at, network = given.partition("@")
    return given if COUNT in one or "*" in name or count == 1 else f"{name}*{count}{at}{network}"
