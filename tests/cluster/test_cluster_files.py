"""Cluster files: units, what may be expressed, and errors that name file, line and field."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from placer.cluster.cluster import Cluster
from placer.cluster.cluster_file import cluster_yaml, parse_cluster
from placer.errors import UsageError
from placer.io.units import Kind, quantity, written

PLAIN = """\
name: small
devices:
  chip:
    memory: 80 GiB
    memory_bandwidth: 2039 GB/s
    rates: {float32: 19.5 TFLOP/s, bfloat16: 312 TFLOP/s}
    launch: 5 us
    efficiency: {ceiling: 87%, processors: 108}
nodes:
  - name: host
    count: 2
    devices:
      - {kind: chip, count: 4}
    link: nvlink3
    nic: {latency: 2 us, bandwidth: 400 Gb/s}
"""


def test_quantities_mean_what_they_say() -> None:
    cluster = parse_cluster(PLAIN)
    device, node = cluster.devices[0], cluster.nodes[0]
    assert device.memory_bytes == 80 * 2**30
    assert device.memory_bandwidth == 2039e9
    assert device.rate("bfloat16") == 312e12
    assert device.launch_seconds == 5e-6
    assert node.nic is not None and node.nic.bandwidth == 400e9 / 8
    assert cluster.size == 2 * 4


def test_a_host_is_read_and_written() -> None:
    made = parse_cluster(PLAIN + "    host: {link: pcie4, memory_bandwidth: 409.6 GB/s}\n")
    host = made.nodes[0].host
    assert host is not None and (host.memory_bandwidth, host.link.bandwidth) == (409.6e9, 31e9)
    assert parse_cluster(cluster_yaml(made)).nodes[0].host == host
    some, all_of = (Cluster.load(name).nodes[0].host for name in ("h100x2", "h100x8"))
    assert some is not None and all_of is not None
    assert some.memory_bandwidth == all_of.memory_bandwidth * 2 / 8


@pytest.mark.parametrize(
    ("text", "kind", "value"),
    [
        ("80 GiB", "bytes", 80 * 2**30),
        ("80GB", "bytes", 80e9),
        ("400 Gb/s", "bandwidth", 50e9),
        ("400 Gbps", "bandwidth", 50e9),
        ("50 GB/s", "bandwidth", 50e9),
        ("1.5 MiB/s", "bandwidth", 1.5 * 2**20),
        ("5 us", "seconds", 5e-6),
        ("5 µs", "seconds", 5e-6),
        ("2e-3 s", "seconds", 2e-3),
        ("312 TFLOP/s", "rate", 312e12),
        ("312 TFLOPS", "rate", 312e12),
        ("2 GFLOP", "flops", 2e9),
    ],
)
def test_units_are_read(text: str, kind: Kind, value: float) -> None:
    assert quantity(text, kind) == value


@pytest.mark.parametrize(
    ("text", "kind"),
    [("80", "bytes"), ("80 GiG", "bytes"), ("fast", "bandwidth"), ("400 Gb", "bandwidth"), ("nan s", "seconds"),
     (".inf", "seconds"), ("5 us", "bandwidth"), ("", "rate"), ("1 2 s", "seconds"),
     ("1e100000000000000000400 B/s", "bandwidth"), ("1e999999999 s", "seconds")],
)  # fmt: skip
def test_what_is_no_quantity_is_refused_with_an_example(text: str, kind: Kind) -> None:
    with pytest.raises(UsageError, match="like"):
        quantity(text, kind)


def test_a_part_of_a_byte_holds_nothing() -> None:
    assert parse_cluster(replaced("80 GiB", "0.6 GiB")).devices[0].memory_bytes == int(0.6 * 2**30)


@given(
    st.floats(min_value=1e-12, max_value=1e21, allow_nan=False),
    st.sampled_from(["bytes", "bandwidth", "seconds", "rate", "flops"]),
)
def test_a_written_quantity_reads_back_to_the_last_bit(value: float, kind: Kind) -> None:
    assert quantity(written(value, kind), kind) == value


def replaced(old: str, new: str) -> str:
    assert PLAIN.count(old) == 1
    return PLAIN.replace(old, new)


BAD = {
    "unknown unit": (replaced("80 GiB", "80 GiG"), 4, "devices.chip.memory", "unknown unit 'GiG'"),
    "no unit": (replaced("80 GiB", "80"), 4, "devices.chip.memory", "no unit"),
    "wrong kind of unit": (replaced("5 us", "5 GB/s"), 7, "devices.chip.launch", "unknown unit"),
    "negative number": (replaced("2039 GB/s", "-2039 GB/s"), 5, "devices.chip.memory_bandwidth", "greater than 0"),
    "zero memory": (replaced("80 GiB", "0 GiB"), 4, "devices.chip.memory", "greater than 0"),
    "missing field": (replaced("    launch: 5 us\n", ""), 3, "devices.chip.launch", "missing"),
    "unknown field": (replaced("    launch:", "    lunch:"), 7, "devices.chip.lunch", "did you mean launch"),
    "unknown device": (replaced("kind: chip", "kind: chop"), 13, "nodes[0].devices[0].kind", "did you mean chip"),
    "unknown link": (replaced("link: nvlink3", "link: nvlink9"), 14, "nodes[0].link", "did you mean nvlink"),
    "zero devices": (replaced("count: 4", "count: 0"), 13, "nodes[0].devices[0].count", "greater than or equal to 1"),
    "zero nodes": (replaced("count: 2", "count: 0"), 11, "nodes[0].count", "greater than or equal to 1"),
    "fraction of a node": (replaced("count: 2", "count: 1.5"), 11, "nodes[0].count", "integer"),
    "truth for a number": (replaced("count: 2", "count: yes"), 11, "nodes[0].count", "number"),
    "doubled key": (
        replaced("    launch: 5 us\n", "    launch: 5 us\n    launch: 6 us\n"), 8, "devices.chip.launch", "twice",
    ),
    "no link in a node of several": (replaced("    link: nvlink3\n", ""), 10, "nodes[0].link", "missing"),
    "no way between nodes": (PLAIN[: PLAIN.index("    nic:")], 10, "nodes[0].nic", "missing"),
    "no float32 rate": (replaced("float32: 19.5 TFLOP/s, ", ""), 3, "devices.chip", "float32"),
    "unknown dtype": (replaced("bfloat16: 312", "bf16: 312"), 6, "devices.chip.rates.bf16", "bfloat16"),
    "no list of nodes": (PLAIN[: PLAIN.index("nodes:")], 1, "nodes", "missing"),
    "empty list of nodes": (PLAIN[: PLAIN.index("nodes:")] + "nodes: []\n", 9, "nodes", "at least one"),
    "levels that join too few": (
        PLAIN + "network:\n  - {name: rack, nodes: 1, link: ib-ndr}\n", 17, "network[0]", "of 2 nodes",
    ),
    "half an efficiency": (replaced(", processors: 108", ""), 8, "devices.chip.efficiency", "ceiling and processors"),
    "falling efficiency points": (
        replaced("{ceiling: 87%, processors: 108}", "{points: [[2 GFLOP, 0.5], [1 GFLOP, 0.7]]}"),
        8, "devices.chip.efficiency", "rise",
    ),
    "a share above all": (replaced("ceiling: 87%", "ceiling: 870%"), 8, "devices.chip.efficiency.ceiling", "1.5"),
    "not YAML": (replaced("{kind: chip, count: 4}", "{kind: chip, count: 4"), 14, "", "not YAML"),
    "tabs": (replaced("    link: nvlink3", "\tlink: nvlink3"), 14, "", "not YAML"),
    "an object of Python": (replaced("name: small", "name: !!python/object/apply:os.system [true]"), 1, "", "not YAML"),
    "fields for a list": (PLAIN[: PLAIN.index("nodes:")] + "nodes: {a: 1}\n", 9, "nodes", "expected a list"),
    "a name for fields": (replaced("{kind: chip, count: 4}", "chip"), 13, "nodes[0].devices[0]", "named fields"),
    "control characters": ("name: \x00\n", 1, "", "not YAML"),
    "a list": ("- 1\n- 2\n", 1, "", "expected fields"),
    "nothing": ("", 1, "", "expected fields"),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_a_wrong_file_is_refused_naming_file_line_and_field(case: str, tmp_path: Path) -> None:
    text, line, field, problem = BAD[case]
    path = tmp_path / "cluster.yaml"
    path.write_text(text)
    with pytest.raises(UsageError) as error:
        Cluster.load(str(path))
    named = [text for text in str(error.value).splitlines() if text.startswith(f"{path}, line {line}: {field}")]
    assert named and problem in named[0]


def test_every_wrong_field_is_named_at_once() -> None:
    text = replaced("80 GiB", "80 GiG").replace("5 us", "5 parsec").replace("count: 4", "count: 0")
    with pytest.raises(UsageError) as error:
        parse_cluster(text)
    assert [line.split(":")[0] for line in str(error.value).splitlines()] == [
        f"cluster file, line {number}" for number in (4, 7, 13)
    ]


@pytest.mark.parametrize("text", ["&a [*a]\n", "a: &a {b: *a}\n"])
def test_aliases_in_a_circle_are_refused(text: str) -> None:
    with pytest.raises(UsageError, match="circle"):
        parse_cluster(text)


def test_a_bomb_of_aliases_is_refused() -> None:
    rows = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    rows += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]" for i in range(1, 9)]
    with pytest.raises(UsageError, match="more values"):
        parse_cluster("\n".join(rows))


def test_a_file_that_is_missing_is_named() -> None:
    with pytest.raises(UsageError, match=r"nowhere\.yaml does not exist"):
        Cluster.load("nowhere.yaml")


def test_every_example_reads_and_writes_back_equal(checkout: Path) -> None:
    files = sorted((checkout / "examples").glob("*.yaml"))
    assert len(files) >= 4
    for path in files:
        cluster = Cluster.load(str(path))
        assert parse_cluster(cluster_yaml(cluster)) == cluster


def test_the_examples_express_unequal_devices_nodes_levels_cpus_and_storage(checkout: Path) -> None:
    clusters = [Cluster.load(str(path)) for path in sorted((checkout / "examples").glob("*.yaml"))]
    assert any(len(node.devices) > 1 for cluster in clusters for node in cluster.nodes)
    assert any(len(cluster.groups) > 1 for cluster in clusters)
    assert any(len(cluster.levels) > 1 for cluster in clusters)
    assert any(device.backend == "cpu" for cluster in clusters for device in cluster.devices)
    assert any(node.storage is not None for cluster in clusters for node in cluster.nodes)


def test_two_kinds_of_one_name_stay_apart_in_a_file() -> None:
    cluster = parse_cluster(
        PLAIN.replace("      - {kind: chip, count: 4}\n", "      - {kind: chip}\n      - {kind: slow}\n").replace(
            "nodes:", "  slow: {use: a100, name: chip, memory: 40 GiB}\nnodes:"
        )
    )
    assert [device.name for device in cluster.devices] == ["chip"] * 4
    assert parse_cluster(cluster_yaml(cluster)) == cluster
