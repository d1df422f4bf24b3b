"""Meshes: a stage's devices as replicas of some degree, and what crosses between two meshes that may differ.

A microbatch's rows are divided among the replicas of either mesh, each by its own shares. Two replicas exchange the
rows that both have (`overlaps`): of m and n replicas at most m + n - 1 pairs do. Between their devices a value goes as
it lies on the one side and is wanted on the other (`routes`): whole from one device that has it, or the part that both
have of it. Gradients take the same ways back, from what the reader holds to what the maker holds.

A value without rows is the same on every replica of its maker: each reading replica gets it with its first rows, and
returns its gradient there.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import accumulate, pairwise
from typing import NamedTuple

from placer.errors import UsageError
from placer.graph import Affine, Tensor
from placer.io.memo import remembered
from placer.plans.plan import Layout, Plan, Stage, replica_rows
from placer.rules.layouts import Lay, State, piece
from placer.rules.two_axis_layouts import pieces
from placer.spmd.device_rows import own_rows_tensor
from placer.spmd.parameter_layouts import held_value

# What `overlaps` remembers: meshes of one plan differ in few ways, and microbatches have two sizes.
REMEMBERED = 4096


class Division(NamedTuple):
    """How rows are divided: into `replicas` parts, in proportion to `shares` (equal where there are none)."""

    replicas: int
    shares: tuple[int, ...] = ()

    def spans(self, rows: int) -> tuple[tuple[int, int], ...]:
        """First and last (exclusive) row of each replica of a microbatch of `rows` rows."""
        return tuple(pairwise(accumulate(replica_rows(rows, self.shares, self.replicas), initial=0)))

    @property
    def ratios(self) -> tuple[float, ...]:
        """The share of each replica in all rows."""
        shares = self.shares or (1,) * self.replicas
        return tuple(share / sum(shares) for share in shares)


@dataclass(frozen=True, slots=True, kw_only=True)
class Mesh:
    """Replicas of `degree` devices each, replica by replica, which divide rows by `shares` and cut ops by `layout`."""

    devices: tuple[int, ...]
    shares: tuple[int, ...] = ()
    degree: int = 1
    layout: Layout | None = field(default=None, hash=False)

    @staticmethod
    def of(plan: Plan, stage: Stage) -> Mesh:
        """The mesh of a stage of `plan`."""
        layout = None if stage.layout is None else plan.layouts[stage.layout]
        return Mesh(devices=stage.devices, shares=stage.shares, degree=stage.degree, layout=layout)

    @property
    def division(self) -> Division:
        """How it divides rows."""
        return Division(len(self.devices) // self.degree, self.shares)

    @property
    def apart(self) -> int:
        """Into how many parts the rows of a replica go: one, or as many as devices that have rows of their own."""
        return 1 if self.layout is None else self.layout.apart

    def like(self, other: Mesh) -> bool:
        """Whether replica by replica, device by device, both have the same rows."""
        if self.degree != other.degree or len(self.devices) != len(other.devices) or self.apart != other.apart:
            return False
        return self.shares == other.shares or self.division.ratios == other.division.ratios


class Overlap(NamedTuple):
    """Rows `first` to `last` (exclusive) of a microbatch, of replica `source` of one mesh and `target` of another.

    opens_source, opens_target: whether they are the first rows of that replica.
    """

    source: int
    target: int
    first: int
    last: int
    opens_source: bool
    opens_target: bool


@lru_cache(maxsize=REMEMBERED)
def overlaps(rows: int, source: Division, target: Division) -> tuple[Overlap, ...]:
    """The overlaps of two meshes for a microbatch of `rows` rows, in the order of the rows."""
    if source == target:
        return tuple(Overlap(r, r, a, b, True, True) for r, (a, b) in enumerate(source.spans(rows)) if a < b)
    return tuple(_overlaps(source.spans(rows), target.spans(rows)))


def _overlaps(sources: Sequence[tuple[int, int]], targets: Sequence[tuple[int, int]]) -> Iterator[Overlap]:
    s = t = 0
    while s < len(sources) and t < len(targets):
        first, last = max(sources[s][0], targets[t][0]), min(sources[s][1], targets[t][1])
        if first < last:
            yield Overlap(s, t, first, last, first == sources[s][0], first == targets[t][0])
        if sources[s][1] <= targets[t][1]:
            s += 1
        else:
            t += 1


@lru_cache(maxsize=REMEMBERED)
def by_source(rows: int, source: Division, target: Division) -> tuple[tuple[Overlap, ...], ...]:
    """The overlaps of each replica of `source`."""
    found: list[list[Overlap]] = [[] for _ in range(source.replicas)]
    for one in overlaps(rows, source, target):
        found[one.source].append(one)
    return tuple(map(tuple, found))


@lru_cache(maxsize=REMEMBERED)
def by_target(rows: int, source: Division, target: Division) -> tuple[tuple[Overlap, ...], ...]:
    """The overlaps of each replica of `target`."""
    found: list[list[Overlap]] = [[] for _ in range(target.replicas)]
    for one in overlaps(rows, source, target):
        found[one.target].append(one)
    return tuple(map(tuple, found))


class Range(NamedTuple):
    """Entries `start` to `stop` (exclusive) of dim `dim` of a whole value."""

    dim: int
    start: int
    stop: int


Ranges = tuple[Range, ...]


class Route(NamedTuple):
    """Device `source` of a replica gives device `target` of another `ranges` of a value: () is all that both hold."""

    source: int
    target: int
    ranges: Ranges


class Crossing(NamedTuple):
    """A value between two meshes: how it lies where it comes from and how it is wanted where it goes."""

    value: str
    tensor: Tensor
    have: State
    want: State


def routes(crossing: Crossing, source: int, target: int) -> tuple[Route, ...]:
    """Which of `source` devices of a replica gives what to which of `target` devices of another.

    Raises UsageError where pieces of a dim that grows with the rows would have to be divided anew.
    """
    tensor, have, want = crossing.tensor, crossing.have.value, crossing.want.value
    if source == target and have == want:
        return tuple(Route(inner, inner, ()) for inner in range(source))
    require_routes(crossing, source, target)
    return tuple(_routes(tensor, have, want, source, target))


def require_routes(crossing: Crossing, source: int, target: int) -> None:
    """Raise UsageError where there are no `routes`."""
    tensor, have, want = crossing.tensor, crossing.have.value, crossing.want.value
    if source == target and have == want:
        return
    for lay, _, _, _ in (*pieces(have, source, 0), *pieces(want, target, 0)):
        if tensor.shape[lay.dim].per_row:
            raise UsageError(
                f"{crossing.value} is cut on dim {lay.dim}, which grows with the rows, and lies otherwise on the other "
                "side; let it be whole, or cut it on another dim"
            )


def _routes(tensor: Tensor, have: Lay, want: Lay, source: int, target: int) -> Iterator[Route]:
    holders: dict[Ranges, list[int]] = {}
    for at in range(source):
        holders.setdefault(_held(tensor, have, source, at), []).append(at)
    for to in range(target):
        wanted = _held(tensor, want, target, to)
        for held, alike in holders.items():
            both = _common(held, wanted)
            if all(one.start < one.stop for one in both):
                yield Route(alike[to % len(alike)], to, both)


def _held(tensor: Tensor, lay: Lay, degree: int, inner: int) -> Ranges:
    return tuple(
        Range(one.dim, *piece(tensor.shape[one.dim].fixed, count, at))
        for one, count, at, _ in pieces(lay, degree, inner)
    )


def _common(one: Ranges, other: Ranges) -> Ranges:
    """What both ranges hold, dim by dim."""
    found = {part.dim: part for part in one}
    for part in other:
        mine = found.get(part.dim, part)
        found[part.dim] = Range(part.dim, max(mine.start, part.start), min(mine.stop, part.stop))
    return tuple(found[dim] for dim in sorted(found))


class Bundle(NamedTuple):
    """What one device of a replica sends to one of another: values, their parts, and the tensors that these are."""

    source: int
    target: int
    values: tuple[str, ...]
    cuts: tuple[Ranges, ...]
    tensors: tuple[Tensor, ...]


@dataclass(frozen=True)
class Exchange:
    """What crosses between replicas, of `source` and of `target` devices, of two meshes that have rows in common.

    Tensors count rows of which the replicas have `apart` times as many.
    """

    crossings: tuple[Crossing, ...]
    source: int
    target: int
    apart: int = 1

    @staticmethod
    def between(crossings: Iterable[Crossing], source: Mesh, target: Mesh) -> Exchange:
        """What crosses from one mesh to another: of devices with rows of their own each sends to the one like it."""
        apart = source.apart
        own = (one._replace(tensor=own_rows_tensor(one.tensor, apart)) if apart > 1 else one for one in crossings)
        return Exchange(tuple(own), source.degree, target.degree, apart)

    @remembered
    def bundles(self, opens: bool) -> tuple[Bundle, ...]:
        """In order of the sending device, then the receiving; values without rows only where a replica opens."""
        found: dict[tuple[int, int], list[tuple[str, Ranges, Tensor]]] = {}
        for one in (one for one in self.crossings if opens or one.tensor.batched):
            for route in routes(one, self.source, self.target):
                part = _part(one, route, self.source)
                found.setdefault(route[:2], []).append((one.value, route.ranges, part))
        return tuple(Bundle(*pair, *map(tuple, zip(*found[pair], strict=True))) for pair in sorted(found))


def _part(crossing: Crossing, route: Route, degree: int) -> Tensor:
    """The tensor that goes a route, for any number of rows."""
    if not route.ranges:
        return held_value(crossing.tensor, crossing.have, degree, route.source)
    shape = list(crossing.tensor.shape)
    for part in route.ranges:
        shape[part.dim] = Affine(part.stop - part.start)
    return replace(crossing.tensor, shape=tuple(shape))


def row_dim(tensor: Tensor) -> int | None:
    """The dim that is cut to divide a value by rows; None where none does.

    It is the only one that grows with the rows: dim 0, a whole number of entries per row, or another with one entry.
    """
    growing = [dim for dim, size in enumerate(tensor.shape) if size.per_row]
    if len(growing) != 1:
        return None
    size = tensor.shape[growing[0]]
    return growing[0] if size.fixed == 0 and (growing[0] == 0 or size.per_row == 1) else None


class Parcel(NamedTuple):
    """What device `source` sends to device `target` of the cluster: `rows` rows of a bundle."""

    source: int
    target: int
    rows: int
    bundle: Bundle


def parcels(exchange: Exchange, source: Mesh, target: Mesh, rows: int, *, gradient: bool) -> Iterator[Parcel]:
    """All that crosses of a microbatch of `rows` rows, in the order in which it is sent."""
    opening, within = exchange.bundles(True), exchange.bundles(False)
    ends, degrees = (source.devices, target.devices), (source.degree, target.degree)
    for replica, reader, first, last, opens_source, opens_target in overlaps(rows, source.division, target.division):
        sender, receiver = replica * degrees[0], reader * degrees[1]
        for bundle in opening if (opens_source if gradient else opens_target) else within:
            yield Parcel(ends[0][sender + bundle[0]], ends[1][receiver + bundle[1]], last - first, bundle)
