"""`placer place` and `placer bench placement` from the shell's side: documents, exit codes, messages."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from placer.cli import app
from placer.errors import InfeasibleError, PlacerError, UsageError


def content(**changes: object) -> dict[str, Any]:
    """Two nodes in a row on one accelerator and one CPU."""
    nodes = [
        {"id": i, "fpgaLatency": 1.0 + i, "cpuLatency": 10.0, "size": 5, "supportedOnFpga": 1, "isBackwardNode": 0}
        for i in range(2)
    ]
    edges = [{"sourceId": 0, "destId": 1, "cost": 0.5}]
    return {"maxFPGAs": 1, "maxCPUs": 1, "maxSizePerFPGA": 10, "nodes": nodes, "edges": edges} | changes


def with_node(number: int, **changes: object) -> dict[str, Any]:
    made = content()
    made["nodes"][number] |= changes
    return made


def with_edge(**changes: object) -> dict[str, Any]:
    return content(edges=[{"sourceId": 0, "destId": 1, "cost": 0.5} | changes])


def run(*arguments: str) -> str:
    result = CliRunner().invoke(app, [*arguments])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result.output


def place(tmp_path: Path, text: str, *options: str, name: str = "problem.json") -> dict[str, Any]:
    path = tmp_path / name
    path.write_text(text)
    document: dict[str, Any] = json.loads(run("place", str(path), "--json", *options))
    return document


def test_the_document_holds_value_bound_gap_seconds_and_the_device_of_every_node(tmp_path: Path) -> None:
    document = place(tmp_path, json.dumps(content()))
    assert (document["objective"], document["bound"], document["gap"]) == (1.0 + 2.0, 1.0 + 2.0, 0.0)
    assert (document["unit"], document["status"]) == ("ms", "optimal")
    assert document["assignment"] == {"0": "accelerator0", "1": "accelerator0"}
    assert document["seconds"] >= 0
    assert document["stages"] == [
        {"device": "accelerator0", "load": 3.0, "memory_bytes": 10.0, "nodes": ["0", "1"], "detail": ""}
    ]


@pytest.mark.parametrize("options", [(), ("--free-form",), ("--objective", "latency")])
def test_every_form_keeps_to_the_memory(tmp_path: Path, options: tuple[str, ...]) -> None:
    document = place(tmp_path, json.dumps(content(maxSizePerFPGA=5)), *options)
    assert sorted(document["assignment"].values()) == ["accelerator0", "cpu0"]


def test_a_table_is_printed_without_json(tmp_path: Path) -> None:
    path = tmp_path / "problem.json"
    path.write_text(json.dumps(content()))
    printed = run("place", str(path))
    assert "optimal: bound 3" in printed
    assert "accelerator0" in printed


def test_flags_override_the_file(tmp_path: Path) -> None:
    document = place(tmp_path, json.dumps(content(maxSizePerFPGA=5)), "--devices", "2", "--memory", "1 KiB")
    assert document["objective"] == max(1.0 + 0.5, 2.0 + 0.5)


@pytest.mark.parametrize(
    ("made", "options", "binding"),
    [
        (content(maxCPUs=0, maxSizePerFPGA=9), (), "the nodes hold 10 bytes, 1 accelerators have 9 together"),
        (content(maxCPUs=0, maxSizePerFPGA=4), ("--devices", "9"), "node 0 with the 0 that must share its device"),
        (with_node(1, supportedOnFpga=0) | {"maxCPUs": 0}, (), "1 nodes are not supported on accelerators"),
        (content(maxCPUs=0, maxSizePerFPGA=9), ("--free-form",), "the nodes hold 10 bytes"),
        (content(maxCPUs=0, maxSizePerFPGA=9), ("--objective", "latency"), "the nodes hold 10 bytes"),
    ],
)
def test_what_binds_is_said_where_nothing_fits(
    tmp_path: Path, made: dict[str, Any], options: tuple[str, ...], binding: str
) -> None:
    with pytest.raises(InfeasibleError, match=binding) as raised:
        place(tmp_path, json.dumps(made), *options)
    assert raised.value.exit_code == 1


BAD: dict[str, tuple[str, str]] = {
    "no JSON": ('{"nodes": [\n  oops\n]}', "line 2, column 3: no JSON"),
    "no known format": ("[1, 2]", "JSON in no format that placer reads"),
    "prose": ("a graph", "neither JSON nor lines"),
    "no nodes": (json.dumps(content(nodes=[])), "nodes is empty"),
    "nodes no list": (json.dumps(content(nodes=3)), "nodes is the number 3, a list was expected"),
    "node no object": (json.dumps(content(nodes=[3])), r"nodes\[0\] is the number 3, an object"),
    "no devices": (json.dumps(content(maxFPGAs=0, maxCPUs=0)), "maxFPGAs and maxCPUs are both 0"),
    "half a device": (json.dumps(content(maxCPUs=0.5)), "maxCPUs is 0.5, a whole number"),
    "negative latency": (json.dumps(with_node(1, fpgaLatency=-1)), r"nodes\[1\].fpgaLatency is -1"),
    "no number": (json.dumps(with_node(1, cpuLatency=float("nan"))), r"nodes\[1\].cpuLatency is nan"),
    "text for a number": (json.dumps(with_node(1, size="big")), r"nodes\[1\].size is a text"),
    "no latency": (json.dumps(with_node(0, fpgaLatency=None)), r"nodes\[0\].fpgaLatency is missing"),
    "odd flag": (json.dumps(with_node(0, supportedOnFpga="yes")), r"nodes\[0\].supportedOnFpga is 'yes'"),
    "odd colour": (json.dumps(with_node(0, colorClass="red")), r"nodes\[0\].colorClass is a text"),
    "one id twice": (json.dumps(with_node(1, id=0)), r"nodes\[1\].id is 0, which another node has too"),
    "unknown end": (json.dumps(with_edge(destId=9)), r"edges\[0\].destId is 9, which is no node's id"),
    "negative cost": (json.dumps(with_edge(cost=-2)), r"edges\[0\].cost is -2"),
    "a node reads itself": (json.dumps(with_edge(destId=0)), "the edges form a cycle, 0 -> 0"),
    "two costs of one output": (
        json.dumps(content(edges=[{"sourceId": 0, "destId": 1, "cost": c} for c in (1, 2)])),
        r"edges\[1\].cost is 2.0, another edge out of that node costs 1.0",
    ),
    "cycle": (
        json.dumps(content(edges=[{"sourceId": a, "destId": 1 - a, "cost": 1} for a in (0, 1)])),
        "the edges form a cycle, 0 -> 1 -> 0",
    ),
    "backward to forward": (json.dumps(with_node(0, isBackwardNode=1)), "from backward node 0 to forward node 1"),
    "profile without a cost": ("a -- Relu -- forward_compute_time=1\n", "line 1: backward_compute_time is missing"),
    "profile with a negative cost": (
        "a -- R -- forward_compute_time=-1, backward_compute_time=1, activation_size=1, parameter_size=1\n",
        "line 1: forward_compute_time is -1, at least 0",
    ),
    "profile with an unknown node": (
        "a -- R -- forward_compute_time=1, backward_compute_time=1, activation_size=1, parameter_size=1\n\ta -- b\n",
        "line 2: the edge names b, which is no node",
    ),
    "profile with an odd line": ("a -- R\nb -- c -- d\n", "line 1: 'a -- R' is no node"),
}


@pytest.mark.parametrize("what", sorted(BAD))
def test_a_bad_file_is_refused_with_the_place_in_it(tmp_path: Path, what: str) -> None:
    text, message = BAD[what]
    with pytest.raises(UsageError, match=message) as raised:
        place(tmp_path, text)
    assert raised.value.exit_code == 2
    assert "problem.json" in str(raised.value)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--objective", "beauty"), "no objective 'beauty'; known: throughput, latency"),
        (("--objective", "latency", "--free-form"), "contiguous form only"),
        (("--devices", "0"), "0 devices"),
        (("--memory", "5"), "has no unit"),
        (("--format", "xml"), "no placement format 'xml'"),
        (("--seconds", "-1"), "seconds -1.0"),
        (("--bandwidth", "5 GB/s"), "nothing in dnn-partitioning files depends on it"),
        (("--microbatches", "3"), "--microbatches was given"),
        (("--strategy", "best"), "local, genetic and policy"),
    ],
)
def test_a_bad_flag_is_refused(tmp_path: Path, options: tuple[str, ...], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        place(tmp_path, json.dumps(content()), *options)


def test_latency_of_a_training_graph_is_refused(tmp_path: Path) -> None:
    made = with_node(1, isBackwardNode=1)
    with pytest.raises(UsageError, match="about inference"):
        place(tmp_path, json.dumps(made), "--objective", "latency")


def test_a_missing_file_and_a_folder_are_refused(tmp_path: Path) -> None:
    with pytest.raises(PlacerError, match="does not exist"):
        run("place", str(tmp_path / "none.json"))
    with pytest.raises(PlacerError, match="is a folder"):
        run("place", str(tmp_path))


def test_the_bench_names_what_it_cannot_find(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="holds none of the families"):
        run("bench", "placement", "--data", str(tmp_path))
    with pytest.raises(UsageError, match="no family 'cooking'"):
        run("bench", "placement", "--data", str(tmp_path), "--family", "cooking")
    with pytest.raises(UsageError, match="does not exist"):
        run("bench", "placement", "--data", str(tmp_path / "none"))


def test_the_bench_prints_a_row_for_every_profile(tmp_path: Path) -> None:
    folder = tmp_path / "pipedream"
    folder.mkdir()
    line = (
        "{} -- R -- forward_compute_time=1, backward_compute_time=1, activation_size=0, parameter_size=1 -- stage_id={}"
    )
    (folder / "two.txt").write_text(f"{line.format('a', 0)}\n{line.format('b', 1)}\n\ta -- b\n")
    (row,) = json.loads(run("bench", "placement", "--data", str(tmp_path), "--json"))["rows"]
    assert (row["problem"], row["value"], row["bound"], row["gap"]) == ("pipedream/two", 1 + 1, 1 + 1, 0)
    assert row["published"] == [{"system": "authors' stages, one device each", "value": 1 + 1, "seconds": None}]
