"""`placer data measure`: samples a second that a folder gives on this machine, and a data set file of it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
import yaml
from rich.console import Group, RenderableType
from rich.text import Text

from placer.cli.options import Json, print_result
from placer.errors import UsageError
from placer.io.files import require_writable, write_text
from placer.io.units import written
from placer.report.documents import Document
from placer.report.printing import bytes_text, seconds_text, share_text, table, titled

if TYPE_CHECKING:
    from placer.runtime.data.shards.measuring import MeasuredData

MOST_WORKERS = 256


def measure(
    folder: Annotated[
        str, typer.Argument(metavar="FOLDER", help="Shards (or their URL), or single files.", show_default=False)
    ],
    workers: Annotated[str, typer.Option(help="Numbers of loading processes, separated by commas.")] = "0,1,2",
    samples: Annotated[int, typer.Option(min=1, help="Samples of each measurement.")] = 500,
    pixels: Annotated[int, typer.Option(min=1, max=16384, help="Images are decoded to so many, squared.")] = 224,
    output: Annotated[str | None, typer.Option("-o", "--output", help="Write a data set file here.")] = None,
    json: Json = False,
) -> None:
    """Measure reading (pages dropped from the cache before), decoding, and loaders beside what is predicted for them.

    Example: placer data measure shards/train --workers 0,2,4 -o train.yaml
    """
    from placer.runtime.data.shards.measuring import measured

    counts = _counts(workers)
    if output is not None:
        require_writable(output)
    found = measured(folder, workers=counts, samples=samples, pixels=pixels)
    if output is not None:
        write_text(output, data_set_text(found))
    print_result(_view(found), _document(found), json)


def data_set_text(found: MeasuredData) -> str:
    """The data set file of what was measured."""
    fields = {
        "name": Path(found.folder).name or "data",
        "samples": found.samples,
        "stored": written(max(1, round(found.stored_bytes)), "bytes"),
        "decoded": written(max(1, round(found.decoded_bytes)), "bytes"),
        "decode": written(found.core_seconds, "seconds"),
        "read": "at_random" if found.format == "single files" else "in_sequence",
        "source": "placer data measure",
    }
    return yaml.safe_dump(fields, sort_keys=False, allow_unicode=True)


def _counts(text: str) -> tuple[int, ...]:
    try:
        found = tuple(int(word) for word in text.split(","))
    except ValueError:
        found = ()
    if not found or not all(0 <= count <= MOST_WORKERS for count in found):
        raise UsageError(f"--workers is {text!r}; give numbers from 0 to {MOST_WORKERS}, such as 0,2,4")
    return found


def _view(found: MeasuredData) -> RenderableType:
    view = table("workers", "samples/s", "predicted", "error", left=0)
    for one in found.loaders:
        error = one.predicted / one.samples_per_second - 1
        view.add_row(str(one.workers), f"{one.samples_per_second:.0f}", f"{one.predicted:.0f}", share_text(error))
    lines = (
        f"{found.folder}: {found.samples} samples as {found.format}, {bytes_text(found.stored_bytes)} each, "
        f"{bytes_text(found.decoded_bytes)} decoded",
        f"reading: {seconds_text(found.read_seconds)} a sample, {bytes_text(found.read_bandwidth)}/s",
        f"decoding: {seconds_text(found.core_seconds)} of a core a sample",
    )
    return Group(*map(Text, lines), titled("loaders", view))


def _document(found: MeasuredData) -> Document:
    return {
        "folder": found.folder,
        "format": found.format,
        "samples": found.samples,
        "stored_bytes": found.stored_bytes,
        "decoded_bytes": found.decoded_bytes,
        "read_seconds": found.read_seconds,
        "read_bytes_per_second": found.read_bandwidth,
        "core_seconds": found.core_seconds,
        "loaders": [
            {
                "workers": one.workers,
                "samples_per_second": one.samples_per_second,
                "predicted_samples_per_second": one.predicted,
            }
            for one in found.loaders
        ],
    }
