"""Seconds of every block on every kind of device, as prefix sums: a run of blocks is a difference of two numbers."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate

from placer.cluster import Cluster, Device
from placer.compute import block_seconds
from placer.graph import Graph
from placer.numerics import Numerics
from placer.settings import RunSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """Prefix sums over blocks of seconds on one kind of device for one number of rows; seconds of the prologue."""

    forward: tuple[float, ...]
    backward: tuple[float, ...]
    weight: tuple[float, ...]
    prologue: float


class Profiles:
    """Profiles by device and rows, each block class and kind of device computed once."""

    def __init__(self, graph: Graph, cluster: Cluster, numerics: Numerics, settings: RunSettings) -> None:
        self.graph = graph
        self.cluster = cluster
        self.numerics = numerics
        self.settings = settings
        self._known: dict[tuple[int, int], Profile] = {}

    def of(self, device: int, rows: int) -> Profile:
        """The profile of `rows` rows on a device."""
        key = (self.kind[device], rows)
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = self._make(self.cluster.devices[device], rows)
        return found

    @cached_property
    def kind(self) -> tuple[int, ...]:
        """For each device the first device of its kind."""
        first: dict[Device, int] = {}
        return tuple(first.setdefault(device, index) for index, device in enumerate(self.cluster.devices))

    def kinds(self, devices: Iterable[int]) -> tuple[int, ...]:
        """One device of each kind among `devices`."""
        return tuple(sorted({self.kind[device] for device in devices}))

    def _make(self, device: Device, rows: int) -> Profile:
        kinds = {block.kind for block in (*self.graph.blocks, self.graph.prologue)}
        each = {
            kind: block_seconds(self.graph.classes[kind], self.numerics, device, self.settings, rows) for kind in kinds
        }
        blocks = [each[block.kind] for block in self.graph.blocks]
        return Profile(
            forward=_sums(block.forward for block in blocks),
            backward=_sums(block.backward for block in blocks),
            weight=_sums(block.weight for block in blocks),
            prologue=each[self.graph.prologue.kind].forward,
        )


def _sums(own: Iterable[float]) -> tuple[float, ...]:
    return tuple(accumulate(own, initial=0.0))
