"""The published tables of a data path for image training beside what placer's flow network needs, and a picture.

    python -m examples.data_path.tables                        the four tables; exits 1 where a number differs
    python -m examples.data_path.tables --plot tables.svg     and disks against devices (needs placer-planner[plot])

The tables count disks, network cards and cores for 1 to 256 devices that compute 0.3 GB/s of decoded images each.
Units: an SSD reads 0.4 GB/s, a rotating disk 0.02 at random (behind NFS) or 0.2 in sequence (behind an object store), a
network card passes 5 GB/s, a core takes 0.025 GB/s compressed and gives 0.1 GB/s decoded, the input of a device passes
1 GB/s.
Source: the talks placer was started from, on deep learning for large image sets; the last table is printed up to 8
devices only.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from placer.cluster.cluster import Cluster
from placer.cluster.cluster_file import parse_cluster
from placer.costs.data_path.data_set import DataSet
from placer.costs.data_path.demand import uniform_demand
from placer.costs.data_path.path import DataPath, data_path
from placer.costs.data_path.resources import Kind
from placer.errors import require_extra

GB = 10**9
# Of one image. Only the rates are published: their ratio of four is, the size itself changes nothing.
STORED, DECODED = 100_000, 400_000
RATE = 0.3 * GB / DECODED
COUNTED: tuple[Kind, ...] = ("disks", "network cards", "cores")

MACHINES = """
name: talk
nodes:
  - name: node
    devices: [{{kind: k80, count: {devices}}}]
    link: pcie3
    cores: 2000
    memory: 128 GiB
    host: {{link: {{latency: 0, bandwidth: 1 GB/s}}, memory_bandwidth: 10 TB/s}}
    {own}
{shared}
"""
SSD = "storage: {latency: 0, read: 0.4 GB/s, write: 0.4 GB/s}"
DISKS = """storage:
  {latency: 0, read: 200 MB/s, write: 200 MB/s, random_read: 20 MB/s, nic: {latency: 0, bandwidth: 5 GB/s}}
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedTable:
    """A case; rows: devices, and as printed how many disks, network cards and cores (None: none is printed)."""

    case: str
    shared: bool
    compressed: bool
    at_random: bool
    rows: tuple[tuple[int, int, int | None, int | None], ...]

    def path(self, devices: int) -> DataPath:
        """The data path of so many devices."""
        cluster = machines(devices, shared=self.shared)
        return data_path(self.data_set, cluster, uniform_demand(cluster, RATE))

    @property
    def data_set(self) -> DataSet:
        """Images larger in all than any memory."""
        stored = STORED if self.compressed else DECODED
        seconds = STORED / (0.025 * GB) if self.compressed else 0.0
        return DataSet(
            name=self.case, samples=10**9, stored_bytes=stored, decoded_bytes=DECODED, sent_bytes=DECODED,
            decode_seconds=seconds, at_random=self.at_random,
        )  # fmt: skip


TABLES = (
    PublishedTable(
        case="local SSD, compressed", shared=False, compressed=True, at_random=False,
        rows=((1, 1, None, 3), (4, 1, None, 12), (8, 2, None, 24), (16, 3, None, 48)),
    ),
    PublishedTable(
        case="NFS, compressed", shared=True, compressed=True, at_random=True,
        rows=(
            (1, 4, 1, 3), (4, 15, 1, 12), (8, 30, 1, 24), (16, 60, 1, 48), (64, 240, 1, 192), (256, 960, 4, 768),
        ),
    ),
    PublishedTable(
        case="NFS, uncompressed", shared=True, compressed=False, at_random=True,
        rows=(
            (1, 15, 1, None), (4, 60, 1, None), (8, 120, 1, None), (16, 240, 1, None), (64, 960, 4, None),
            (256, 3840, 16, None),
        ),
    ),
    PublishedTable(
        case="object store, uncompressed", shared=True, compressed=False, at_random=False,
        rows=((1, 2, 1, None), (4, 6, 1, None), (8, 12, 1, None)),
    ),
)  # fmt: skip


def machines(devices: int, *, shared: bool) -> Cluster:
    """All devices in one node, as the tables count them, with one disk."""
    return parse_cluster(MACHINES.format(devices=devices, own="" if shared else SSD, shared=DISKS if shared else ""))


def needed(path: DataPath) -> tuple[int | None, int | None, int | None]:
    """Disks, network cards, cores with which devices never wait."""
    found = {one.kind: one.needed for one in path.chains.resources}
    disks, cards, cores = (found.get(kind) for kind in COUNTED)
    return disks, cards, cores


def draw(path: Path) -> None:
    """Disks needed against devices, both logarithmic. Raises UsageError where matplotlib is missing."""
    require_extra("plot", "matplotlib")
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6, 4.5), layout="constrained")
    axes, counts = figure.subplots(), [2**k for k in range(9)]
    for one in TABLES:
        line = axes.loglog(counts, [needed(one.path(count))[0] for count in counts], "-", base=2, label=one.case)
        axes.plot([row[0] for row in one.rows], [row[1] for row in one.rows], "o", color=line[0].get_color())
    axes.set_xlabel("devices")
    axes.set_ylabel("disks with which devices never wait (points: published)")
    axes.legend()
    figure.savefig(path)


def main(argv: Sequence[str] | None = None) -> int:
    """Print the tables, draw where asked; 1 where a number differs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--plot", type=Path, help="file to draw into: .svg, .png or .pdf")
    options = parser.parse_args(argv)
    wrong = 0
    for one in TABLES:
        print(f"{one.case}\n{'devices':>8} {'disks, cards, cores':>22} {'published':>22}")
        for devices, *published in one.rows:
            ours = list(needed(one.path(devices)))
            wrong += ours != published
            print(f"{devices:8d} {_shown(ours):>22} {_shown(published):>22}{'  differs' * (ours != published)}")
    if options.plot:
        draw(options.plot)
    print(f"{wrong} rows differ")
    return 1 if wrong else 0


def _shown(counts: Sequence[int | None]) -> str:
    return ", ".join("-" if count is None else str(count) for count in counts)


if __name__ == "__main__":
    sys.exit(main())
