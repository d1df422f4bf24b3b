"""Measure this machine: products by size, memory, launch, messages, all-reduces. Takes under a minute; remembered.

Example: placer calibrate localx2 -o this-machine.yaml
How much steps of 50 ms vary, for placer stragglers: placer calibrate localx2 --vary 0.05 -o ranks.yaml
"""

from __future__ import annotations

import re
import sys
from typing import Annotated

import typer
from rich.text import Text

from placer.cli.options import Json, print_result
from placer.cluster.cluster import Cluster
from placer.cluster.cluster_file import cluster_yaml
from placer.errors import UsageError
from placer.io.files import require_writable, write_text
from placer.report.documents import Document

# A hundred of these end before the longest that measuring may take.
MOST_STEP = 1.0


def run(
    machine: Annotated[str, typer.Argument(metavar="local|localxN", help="This machine as N devices.")] = "local",
    output: Annotated[str | None, typer.Option("-o", "--output", help="Write a cluster file; - is stdout.")] = None,
    vary: Annotated[
        float | None,
        typer.Option(
            min=1e-3,
            max=MOST_STEP,
            metavar="SECONDS",
            help="Measure how much steps of so many seconds vary instead, and write the ranks for placer stragglers.",
        ),
    ] = None,
    json: Json = False,
) -> None:
    """Measure, save, print the cluster file."""
    from placer.cluster.calibrate import calibrate

    if output is not None:
        require_writable(output)
    if vary is not None:
        _vary(machine, vary, output, json)
        return
    cluster = calibrate(_devices(machine), progress=lambda line: print(f"placer: {line}", file=sys.stderr))
    if output is not None:
        write_text(output, cluster_yaml(cluster))
    if output != "-":
        print_result(Text(cluster_yaml(cluster)), cluster_document(cluster), json)


def _vary(machine: str, seconds: float, output: str | None, json: bool) -> None:
    """The same of steps."""
    from placer.cluster.calibrate import varying_steps
    from placer.cluster.calibrate.varying import ranks_yaml

    measured = varying_steps(_devices(machine), seconds, lambda line: print(f"placer: {line}", file=sys.stderr))
    if output is not None:
        write_text(output, ranks_yaml(measured))
    if output != "-":
        document: Document = {
            "devices": [{"name": one.name, "step_seconds": list(one.seconds)} for one in measured.devices]
        }
        print_result(Text(ranks_yaml(measured)), document, json)


def _devices(machine: str) -> int | None:
    found = re.fullmatch(r"local(?:x(\d+))?", machine)
    if not found:
        raise UsageError(f"{machine!r} cannot be measured from here; give local, or localx4 for 4 devices")
    return int(found[1]) if found[1] else None


def cluster_document(cluster: Cluster) -> Document:
    """What was measured, for machines."""
    device, link = cluster.devices[0], cluster.nodes[0].link
    return {
        "cluster": cluster.name,
        "devices": cluster.size,
        "device": device.name,
        "rates_flops_per_second": dict(device.rates),
        "memory_bytes": device.memory_bytes,
        "memory_bandwidth_bytes_per_second": device.memory_bandwidth,
        "launch_seconds": device.launch_seconds,
        "link_latency_seconds": link.latency_seconds,
        "link_bandwidth_bytes_per_second": link.bandwidth,
        "notes": list(cluster.notes),
    }
