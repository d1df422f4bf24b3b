"""Data sets: how many samples there are, their bytes on the way, and the seconds a core takes for one, from a file.

name: ImageNet
samples: 1281167
stored: 110 kB          # of one sample, as it lies on the storage
decoded: 602112 B       # of one sample, as the cores leave it; left out: as stored, nothing is decoded
decode: 2.5 ms          # of one core, for one sample
augment: 1 ms           # likewise, on what is decoded
sent: 150528 B          # of one sample, as it goes to a device; left out: as decoded
read: in_sequence       # shards from beginning to end; at_random: a request for each sample
workers: 4              # loading processes of each device; 0: the one that trains loads; left out: as many as help
where: shared           # the storage of the cluster; local: that of each node; left out: the cluster's, if it has one
prices: {disk: 300, core: 60, network_card: 500, memory_GiB: 4}     # dollars; left out: what is cheapest is not known
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from pydantic import BaseModel, ConfigDict

from placer.cluster.schema import Bytes, Seconds
from placer.errors import UsageError
from placer.io.bounds import Amount, Count, CountFromOne
from placer.io.files import read_text
from placer.io.yaml_document import parse, validated

Where = Literal["shared", "local"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Prices:
    """Dollars of one disk, core, network card, and GiB of host memory; None where it is not known."""

    disk: float | None = None
    core: float | None = None
    network_card: float | None = None
    memory_per_gib: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DataSet:
    """Samples and what one of them takes: bytes at each point of the way, seconds of one core.

    stored_bytes: on the storage; decoded_bytes: as the cores leave it; sent_bytes: as it goes to a device. at_random:
    samples are read one by one, not as shards in sequence. workers: processes that load for each device, 0: the one
    that trains; None: they do not bind. where: on the cluster's `shared` storage or on a `local` one of each node;
    None: shared where the cluster has such a storage.
    """

    name: str
    samples: int
    stored_bytes: float
    decoded_bytes: float
    sent_bytes: float
    decode_seconds: float = 0.0
    augment_seconds: float = 0.0
    at_random: bool = False
    workers: int | None = None
    where: Where | None = None
    prices: Prices = Prices()

    @property
    def core_seconds(self) -> float:
        """Seconds of one core for one sample."""
        return self.decode_seconds + self.augment_seconds

    @property
    def total_bytes(self) -> float:
        """The whole set as it is stored."""
        return self.samples * self.stored_bytes


class PricesEntry(BaseModel):
    """Dollars, in a file."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    disk: Amount | None = None
    core: Amount | None = None
    network_card: Amount | None = None
    memory_GiB: Amount | None = None  # noqa: N815 - a field of a file, with its unit


class DataSetEntry(BaseModel):
    """A data set file."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    name: str = "data set"
    samples: CountFromOne
    stored: Bytes
    decoded: Bytes | None = None
    decode: Seconds = 0.0
    augment: Seconds = 0.0
    sent: Bytes | None = None
    read: Literal["in_sequence", "at_random"] = "in_sequence"
    workers: Count | None = None
    where: Where | None = None
    prices: PricesEntry = PricesEntry()
    source: str = ""

    def data_set(self) -> DataSet:
        """The data set."""
        decoded = self.decoded or self.stored
        return DataSet(
            name=self.name,
            samples=self.samples,
            stored_bytes=self.stored,
            decoded_bytes=decoded,
            sent_bytes=self.sent or decoded,
            decode_seconds=self.decode,
            augment_seconds=self.augment,
            at_random=self.read == "at_random",
            workers=self.workers,
            where=self.where,
            prices=Prices(
                disk=self.prices.disk,
                core=self.prices.core,
                network_card=self.prices.network_card,
                memory_per_gib=self.prices.memory_GiB,
            ),
        )


def read_data_set(path: str) -> DataSet:
    """The data set of the file `path`. Raises UsageError naming file, line and field of what is wrong."""
    document = parse(read_text(path, "the data set file"), path)
    entry = validated(document, DataSetEntry)
    if entry.decoded is not None and entry.decoded != entry.stored and not entry.decode:
        raise UsageError(
            f"{path}, line {document.line(('decoded',))}: decoded differs from stored, yet nothing says how long a "
            "core takes for it; add decode, as in decode: 2.5 ms (measure it: placer data measure)"
        )
    return entry.data_set()
