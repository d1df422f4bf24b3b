"""Catalogue names with counts, and the data behind them: dense rates, one-direction bandwidths, a source for each."""

from __future__ import annotations

import csv
from itertools import pairwise
from pathlib import Path

import pytest

from placer.cluster.catalogue import catalogue_device
from placer.cluster.cluster import Cluster
from placer.cluster.cluster_file import cluster_yaml, parse_cluster
from placer.cluster.hardware_data import aliases, entries
from placer.cluster.schema import DeviceEntry, LinkEntry, StorageEntry
from placer.errors import UsageError
from placer.io.units import quantity


def test_counts_are_devices_per_node_times_nodes() -> None:
    cluster = Cluster.load("h100x8*4")
    assert (cluster.size, len(cluster.nodes)) == (8 * 4, 4)
    assert {device.name for device in cluster.devices} == {"H100 80GB SXM5"}


@pytest.mark.parametrize(
    ("spec", "name", "sizes"),
    [
        ("a100x8", "A100 80GB SXM4", [8]),
        ("a100-40gbx8*2", "A100 40GB SXM4", [8, 8]),
        ("rtx4090", "RTX 4090 PCIe", [1]),
        ("rtx4090x4", "RTX 4090 PCIe", [4]),
        ("mi300x", "Instinct MI300X OAM", [1]),
        ("mi300xx8", "Instinct MI300X OAM", [8]),
        ("H800x8*2", "H800 80GB SXM5", [8, 8]),
        ("v100x4*2", "Tesla V100 SXM2 32GB", [4, 4]),
        ("h200*2", "H200 SXM5", [1, 1]),
        ("gb200x72", "GB200 (per GPU) NVL72", [72]),
        ("t4x2*2@25gbe", "Tesla T4 PCIe", [2, 2]),
    ],
)
def test_names_are_told_from_counts(spec: str, name: str, sizes: list[int]) -> None:
    cluster = Cluster.load(spec)
    assert cluster.devices[0].name == name
    assert [node.size for node in cluster.nodes] == sizes


def test_unequal_nodes_are_joined_with_a_plus() -> None:
    cluster = Cluster.load("h100x8*2+a100x4")
    assert [node.size for node in cluster.nodes] == [8, 8, 4]
    assert len({device.name for device in cluster.devices}) == 2


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ("h100x0", "zero devices"),
        ("h100x8*0", "zero devices"),
        ("localx0", "zero devices"),
        ("h100x16", r"at most 8 h100.*h100x8\*2"),
        ("h100x8*999999999", "at most"),
        ("h100x8*9999999999999999999", "cluster"),
        ("h10x8", "did you mean h100"),
        ("", "give a Cluster, a cluster file"),
        ("h100 x 8", "path of a cluster file"),
        ("h100x8*", "path of a cluster file"),
        ("t4x4*2", "t4x4.*@100gbe"),
        ("t4x4*2@carrier-pigeon", "no network"),
    ],
)
def test_a_wrong_name_says_what_to_do(spec: str, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        Cluster.load(spec)


def test_a_cluster_is_its_own_description() -> None:
    cluster = Cluster.load("h100x8")
    assert Cluster.load(cluster) is cluster


def test_the_assumed_node_is_stated() -> None:
    cluster = Cluster.load("h100x8*4")
    assert any("8 x H100" in note and "8 x InfiniBand NDR" in note and "NVLink 4" in note for note in cluster.notes)


def test_every_device_makes_a_cluster_that_reads_back_equal() -> None:
    for name in aliases("devices"):
        cluster = Cluster.load(f"{name}*2@400gbe")
        assert parse_cluster(cluster_yaml(cluster)) == cluster


def test_every_entry_states_its_source() -> None:
    for device in entries("devices").values():
        entry = DeviceEntry.model_validate(device)
        assert entry.source and entry.efficiency.source
    for link in entries("links").values():
        assert LinkEntry.model_validate(link).source
    for storage in entries("storage").values():
        assert StorageEntry.model_validate(storage).source
    assert all(node["source"] for node in entries("nodes").values())
    assert set(entries("nodes")) == set(entries("devices"))


def test_efficiency_rises_with_size_to_the_measured_ceiling() -> None:
    ceilings = {
        "a100": 271.2 / 312,
        "a100-pcie": 252.9 / 312,
        "h100": 794.5 / 989,
        "b200": 1745 / 2250,
        "mi300x": 668.4 / 1300,
    }
    for name in aliases("devices"):
        device = catalogue_device(name)
        assert all(low <= high for (_, low), (_, high) in pairwise(device.curve.points))
        assert device.efficiency("bfloat16", 1e6) < 0.1 < device.efficiency("bfloat16", 1e13)
    for name, ceiling in ceilings.items():
        assert catalogue_device(name).efficiency("bfloat16", 1e13) == pytest.approx(ceiling, rel=0.005)


def test_types_a_chip_lacks_run_at_its_float32_rate() -> None:
    assert catalogue_device("v100").rate("bfloat16") == catalogue_device("v100").rate("float32") == 15.7e12
    assert catalogue_device("a100").rate("float64") == 19.5e12 / 2


def rows(shared: Path, category: str) -> list[dict[str, str]]:
    with (shared / "truth" / "hardware.csv").open() as file:
        return [row for row in csv.DictReader(file) if row["category"] == category]


def test_the_accelerators_are_those_of_the_reference(shared: Path) -> None:
    ours = {device["name"]: DeviceEntry.model_validate(device) for device in entries("devices").values()}
    columns = {"float32": "fp32", "tfloat32": "tf32", "float16": "fp16", "bfloat16": "bf16", "float8": "fp8"}
    for row in rows(shared, "gpu"):
        dies = 2 if "2 GCD" in row["unit"] else 1
        name = f"{row['name']} {row['form_factor'].replace('16/32GB', '32GB')}" + (", one GCD" if dies == 2 else "")
        entry = ours[name]
        expected = {d: float(row[f"{c}_tflops"]) * 1e12 / dies for d, c in columns.items() if row[f"{c}_tflops"]}
        stated = {str(d): rate for d, rate in entry.rates.items() if d != "float4"}  # no column there
        assert stated == pytest.approx(expected)
        assert entry.memory_bandwidth == pytest.approx(float(row["mem_bw_gb_s"]) * 1e9 / dies)
        assert entry.memory == pytest.approx(float(row["mem_gb"]) * 2**30 / dies, rel=0.005)
        assert row["source"] in entry.source and entry.confidence == row["confidence"]


def test_the_links_and_networks_are_those_of_the_reference(shared: Path) -> None:
    ours = {link["name"]: LinkEntry.model_validate(link) for link in entries("links").values()}
    for row in rows(shared, "network") + [r for r in rows(shared, "link") if r["bw_uni_gb_s"]]:
        entry = ours[row["name"]]
        per_port = "peer" in row["name"]
        assert entry.bandwidth * (1 if per_port else entry.ports) == pytest.approx(float(row["bw_uni_gb_s"]) * 1e9)
        assert entry.source.startswith(row["source"])


def test_the_storage_is_that_of_the_reference(shared: Path) -> None:
    ours = {str(storage["name"]): StorageEntry.model_validate(storage) for storage in entries("storage").values()}
    for row in rows(shared, "storage"):
        entry = ours[row["name"]]
        if row["read_mb_s"]:
            assert entry.read == pytest.approx(float(row["read_mb_s"]) * 1e6)
        if row["write_mb_s"]:
            assert entry.write == pytest.approx(float(row["write_mb_s"]) * 1e6)
        if row["latency_us"]:
            assert entry.latency == pytest.approx(float(row["latency_us"]) * 1e-6)


def test_a_catalogue_quantity_has_a_unit() -> None:
    assert quantity(entries("devices")["a100-80gb-sxm4"]["memory"], "bytes") == 80 * 2**30
