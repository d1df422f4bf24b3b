"""The data path against the published tables, and what holds of every flow: monotone, bounded, its cut binds."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from examples.data_path import tables
from examples.data_path.tables import DECODED, DISKS, GB, MACHINES, RATE, SSD, STORED, TABLES, PublishedTable, needed
from examples.data_path.tables import machines as talk
from placer.cluster.cluster_file import cluster_yaml, parse_cluster
from placer.costs.data_path.data_set import Prices
from placer.costs.data_path.demand import uniform_demand
from placer.costs.data_path.path import DataPath, data_path
from placer.costs.data_path.resources import Resource

MB = 10**6
SSD_TABLE, NFS, NFS_UNCOMPRESSED, STORE = TABLES
COMPRESSED = SSD_TABLE.data_set
UNCOMPRESSED = STORE.data_set
AT_RANDOM = NFS.data_set


@pytest.mark.parametrize(
    ("table", "row"), [pytest.param(one, row, id=f"{one.case}-{row[0]}") for one in TABLES for row in one.rows]
)
def test_the_published_tables_come_out_number_by_number(table: PublishedTable, row: tuple[int, ...]) -> None:
    devices, *counts = row
    path = table.path(devices)
    assert list(needed(path)) == counts
    # What the tables print beside the counts: GB/s into the cores, into the devices and computed.
    assert float(path.wanted) * DECODED / GB == pytest.approx(0.3 * devices)
    if table.compressed:
        assert float(path.wanted) * STORED / GB == pytest.approx(0.075 * devices)


def test_beyond_what_is_printed_of_the_object_store_the_same_arithmetic_holds() -> None:
    assert [needed(STORE.path(devices))[:2] for devices in (16, 64, 256)] == [(24, 1), (96, 4), (384, 16)]


@pytest.mark.in_turns
def test_the_tables_are_told_and_drawn(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert tables.main([]) == 0
    assert "0 rows differ" in capsys.readouterr().out
    pytest.importorskip("matplotlib", reason="the picture needs placer-planner[plot]")
    assert tables.main(["--plot", str(tmp_path / "tables.svg")]) == 0
    assert (tmp_path / "tables.svg").read_text().count("object store, uncompressed") == 1


@pytest.mark.parametrize(
    ("gigabytes_per_second", "said"),
    # SATA is printed as 6 GB/s, where the interface has 6 Gb/s: its 2 days follow from what is printed; 6 Gb/s take
    # 2 weeks.
    [
        (30, "9 hours"), (40, "7 hours"), (5, "2 days"), (6, "2 days"), (6.8, "2 days"), (1, "2 weeks"),
        (6 / 8, "2 weeks"),
    ],
)  # fmt: skip
def test_the_published_times_to_move_a_petabyte(gigabytes_per_second: float, said: str) -> None:
    number, unit = said.split()
    seconds = {"hours": 3600, "days": 86400, "weeks": 7 * 86400}[unit]
    assert round(10**15 / (gigabytes_per_second * GB) / seconds) == int(number)


def test_with_what_is_needed_devices_never_wait_and_with_one_disk_less_they_do() -> None:
    cluster = talk(16, shared=True)
    assert cluster.storage is not None

    def with_disks(count: int) -> DataPath:
        assert cluster.storage is not None
        storage = replace(cluster.storage, storage=replace(cluster.storage.storage, disks=count))
        with_them = replace(cluster, storage=storage)
        return data_path(AT_RANDOM, with_them, uniform_demand(with_them, RATE))

    assert with_disks(60).flow.share == 1
    assert with_disks(60).bottleneck == "devices"
    short = with_disks(59)
    assert short.flow.share == Fraction(59, 60)
    assert short.bottleneck == "disks of shared storage"
    (sequence, disk) = short.additions[:2]
    assert (sequence.parts, float(sequence.share)) == (0, 1.0)
    assert (disk.what, float(disk.share)) == ("1 more disk in shared storage", 1.0)


def test_the_cheapest_addition_comes_first_where_prices_are_known() -> None:
    cluster = talk(16, shared=True)
    dear = replace(COMPRESSED, samples=10**7, prices=Prices(disk=300, core=60, network_card=500, memory_per_gib=4))
    disks, memory = data_path(dear, cluster, uniform_demand(cluster, RATE)).additions
    assert disks.what == "5 more disks in shared storage"  # 1.2 GB/s in sequence, one of six is there
    assert disks.dollars == 5 * 300
    assert memory.dollars == (932 - 128) * 4  # 10**7 x 100 kB are 931.3 GiB
    cheap = replace(dear, prices=replace(dear.prices, memory_per_gib=1))
    assert data_path(cheap, cluster, uniform_demand(cluster, RATE)).additions[0].what == memory.what


def test_what_all_the_way_is_short_of_is_told_beside_what_binds_first() -> None:
    """One disk binds for 256 devices, then one card; with enough of both they never wait."""
    cluster = talk(256, shared=True)
    all_of_it = data_path(AT_RANDOM, cluster, uniform_demand(cluster, RATE)).additions[-1]
    assert all_of_it.what == "959 more disks in shared storage and 3 more network cards in shared storage"
    assert (all_of_it.parts, float(all_of_it.share)) == (962, 1.0)


def test_where_samples_lie_from_the_second_epoch_on() -> None:
    cluster = parse_cluster(
        MACHINES.format(devices=1, shared=DISKS, own=SSD.replace("{", "{capacity: 200 GB, "))
    )  # published: under 8 GB on the device, under 128 GB in host memory, 150 GB of ImageNet on a local SSD
    places = {}
    for total in (7 * GB, 127 * GB, 150 * GB, 1000 * GB):
        images = replace(UNCOMPRESSED, samples=total // DECODED)
        (demand,) = uniform_demand(cluster, RATE)
        path = data_path(images, cluster, (replace(demand, spare_bytes=8 * GB),))
        places[total // GB] = path.chains.branches[0].place
    assert places == {7: "device", 127: "host memory", 150: "local disk", 1000: "anew"}


def test_unequal_nodes_wait_for_the_one_that_gets_least() -> None:
    """One of two nodes has a tenth of the cores: both run at its pace, however many the other has."""
    text = MACHINES.format(devices=1, shared="", own=SSD)
    slow = text.split("nodes:\n")[1].rstrip().replace("name: node", "name: slow") + "\n"
    cluster = parse_cluster(
        text.replace("nodes:\n", f"nodes:\n{slow.replace('cores: 2000', 'cores: 2')}").replace(
            "    link: pcie3", "    link: pcie3\n    nic: 10gbe"
        )
    )
    path = data_path(COMPRESSED, cluster, uniform_demand(cluster, RATE))
    assert path.flow.share == Fraction(1, 3)  # of 3 cores there is one, the other is kept for the device
    assert path.bottleneck == "cores of slow"
    assert path.samples_per_second == pytest.approx(2 * RATE / 3)


def test_cores_that_compute_decode_one_after_the_other() -> None:
    """On CPUs a step of d seconds a sample and decoding of c core seconds take d + c / cores."""
    cluster = parse_cluster(
        "name: cpu\nnodes: [{name: node, cores: 4, devices: [{kind: chip}]}]\ndevices:\n  chip: {backend: cpu, "
        "memory: 8 GiB, memory_bandwidth: 10 GB/s, rates: {float32: 1 TFLOP/s}, launch: 1 us, "
        "efficiency: {points: [[1 GFLOP, 50%]]}}"
    )
    path = data_path(replace(COMPRESSED, decode_seconds=0.02), cluster, uniform_demand(cluster, 100))
    assert path.samples_per_second == pytest.approx(1 / (1 / 100 + 0.02 / 4))
    assert path.additions[0].what == "2 cores beside those that compute in node"


WORKED = """
name: loaders
nodes: [{name: node, devices: [{kind: k80}], link: pcie3, cores: 9}]
storage: {latency: 2 ms, read: 100 MB/s, write: 100 MB/s, requests: 8}
"""


@pytest.mark.parametrize(
    ("workers", "at_random", "seconds", "bottleneck"),
    # A sample takes 1 ms of the disk in sequence, (2 + 1) / 8 ms at random, 10 ms of a core.
    [
        (1, False, 0.010, "workers of node"),  # read ahead: nothing to wait for
        (1, True, 0.002 + 0.001 + 0.010, "workers of node"),  # each sample is asked for, waited for, decoded
        (5, True, (0.002 + 0.001 + 0.010) / 5, "workers of node"),
        (20, True, 0.010 / 8, "cores of node"),
        (None, True, 0.010 / 8, "cores of node"),
        (20, False, 0.010 / 8, "cores of node"),
    ],
)
def test_a_worker_waits_for_samples_at_random_and_decodes_them_then(
    workers: int | None, at_random: bool, seconds: float, bottleneck: str
) -> None:
    cluster = parse_cluster(WORKED)
    images = replace(COMPRESSED, decode_seconds=0.010, at_random=at_random, workers=workers)
    path = data_path(images, cluster, uniform_demand(cluster, 10**6))
    assert path.samples_per_second == pytest.approx(1 / seconds)
    assert path.bottleneck == bottleneck


def test_without_workers_a_sample_takes_its_step_and_its_loading_one_after_the_other() -> None:
    cluster = parse_cluster(WORKED)
    images = replace(COMPRESSED, decode_seconds=0.010, at_random=True, workers=0)
    path = data_path(images, cluster, uniform_demand(cluster, 50))
    assert path.samples_per_second == pytest.approx(1 / (1 / 50 + 0.013))
    assert path.bottleneck == "workers of node"
    assert (path.additions[0].what, path.additions[0].parts) == ("1 worker beside those that compute in node", 0)


def test_a_disk_whose_rate_at_random_is_known_keeps_a_worker_waiting_by_it() -> None:
    cluster = parse_cluster(WORKED.replace("requests: 8", "random_read: 10 MB/s"))
    images = replace(COMPRESSED, decode_seconds=0.010, at_random=True, workers=1)
    path = data_path(images, cluster, uniform_demand(cluster, 10**6))
    assert path.samples_per_second == pytest.approx(1 / (STORED / (10 * MB) + 0.010))


RESOURCES = st.builds(
    lambda units, rate, wanted: Resource(
        kind="disks", where="x", units=units, rate=Fraction(rate), wanted=Fraction(wanted)
    ),
    st.integers(1, 100),
    st.integers(1, 1000),
    st.integers(1, 10**6),
)


@given(RESOURCES)
def test_units_needed_are_the_fewest_that_pass_what_is_wanted(one: Resource) -> None:
    assert one.needed * one.rate >= one.wanted > (one.needed - 1) * one.rate


@pytest.mark.in_turns
@settings(max_examples=60)
@given(st.integers(1, 64), st.integers(1, 200), st.integers(1, 8), st.integers(3, 200), st.booleans())
def test_the_share_is_the_weakest_link_and_more_never_hurts(
    devices: int, disks: int, ports: int, cores: int, at_random: bool
) -> None:
    def path(disks: int, ports: int, cores: int) -> DataPath:
        text = cluster_yaml(talk(devices, shared=True)).replace("cores: 2000", f"cores: {cores + devices}")
        cluster = parse_cluster(text)
        assert cluster.storage is not None
        assert cluster.storage.nic is not None
        storage = replace(cluster.storage.storage, disks=disks)
        nic = replace(cluster.storage.nic, ports=ports)
        cluster = replace(cluster, storage=replace(cluster.storage, storage=storage, nic=nic))
        return data_path(replace(COMPRESSED, at_random=at_random), cluster, uniform_demand(cluster, RATE))

    one = path(disks, ports, cores)
    weakest = min(
        disks * (20 if at_random else 200) * MB / STORED, ports * 5 * GB / STORED, cores / 0.004, devices * RATE
    )
    assert one.samples_per_second == pytest.approx(weakest)
    for more in (path(disks + 1, ports, cores), path(disks, ports + 1, cores), path(disks, ports, cores + 1)):
        assert more.flow.share >= one.flow.share
    assert all(better.share > one.flow.share for better in one.additions)
