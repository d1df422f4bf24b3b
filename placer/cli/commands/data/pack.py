"""`placer data pack`: single files become shards."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer
from rich.text import Text

from placer.cli.options import Json, print_result
from placer.io.units import quantity
from placer.report.documents import Document
from placer.report.printing import bytes_text


def pack(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="Files, also in subfolders.", show_default=False)],
    output: Annotated[Path, typer.Option("-o", "--output", help="The new folder of shards.", show_default=False)],
    to: Annotated[
        Literal["tar", "parquet", "tfrecord"],
        typer.Option(help="The format of the shards; parquet needs placer-planner[data]."),
    ] = "tar",
    shard_size: Annotated[
        str, typer.Option(help="Bytes of a shard, such as 64MiB; only a sample that is larger alone exceeds it.")
    ] = "1GiB",
    labels: Annotated[bool, typer.Option("--labels", help="Give each sample the number of its subfolder.")] = False,
    json: Json = False,
) -> None:
    """Pack files into shards that are read in sequence; files with one name up to the first dot are one sample.

    Example: placer data pack images/train -o shards/train --to tar --shard-size 256MiB --labels
    """
    from placer.runtime.data.shards import pack as packed

    made = packed(folder, output, shard_bytes=int(quantity(shard_size, "bytes")), labels=labels, to=to)
    document: Document = {
        "folder": str(made.folder), "format": to, "samples": made.samples, "shards": made.shards, "bytes": made.bytes,
    }  # fmt: skip
    text = f"{made.samples} samples in {made.shards} {to} shards, {bytes_text(made.bytes)}, in {made.folder}"
    print_result(Text(text), document, json)
