"""`placer data path`: the data path of machines whose devices read at a rate that is given, without a model."""

from __future__ import annotations

from typing import Annotated

import typer

from placer.cli.options import ClusterSpec, Json, print_result
from placer.cluster.cluster import Cluster
from placer.costs.data_path.data_set import read_data_set
from placer.costs.data_path.demand import uniform_demand
from placer.costs.data_path.path import data_path
from placer.report.data_path import data_path_document, data_path_view


def path(
    data_set: Annotated[str, typer.Argument(metavar="FILE", help="A data set file.", show_default=False)],
    rows_per_second: Annotated[float, typer.Option(help="Rows a second that a device computes.", show_default=False)],
    cluster: ClusterSpec = "local",
    json: Json = False,
) -> None:
    """Say what disks, cards and cores pass, what binds, and what devices need to never wait.

    Example: placer data path examples/data_path/imagenet.yaml --cluster h100x8 --rows-per-second 1786
    """
    samples = read_data_set(data_set)
    machines = Cluster.load(cluster)
    found = data_path(samples, machines, uniform_demand(machines, rows_per_second))
    print_result(data_path_view(found), data_path_document(found), json)
