"""Numbers as people read them, three digits and a unit; tables on a terminal in colour, elsewhere as plain text."""

from __future__ import annotations

import io
import sys

from rich.box import SIMPLE_HEAD
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from placer.io.terminal import harmless

BINARY = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
DECIMAL = ("", "K", "M", "G", "T", "P", "E", "Z")


def seconds_text(seconds: float) -> str:
    """`1.23 s`, `12.3 ms`, `4.56 us`."""
    for factor, unit in ((1.0, "s"), (1e3, "ms"), (1e6, "us")):
        if abs(seconds) * factor >= 1:
            return f"{_digits(seconds * factor)} {unit}"
    return "0 s" if seconds == 0 else f"{seconds * 1e9:.3g} ns"


def bytes_text(size: float) -> str:
    """`512 B`, `1.50 GiB`."""
    return _scaled(size, 1024.0, BINARY)


def flops_text(flops: float) -> str:
    """`210.8 TFLOP`."""
    return _scaled(flops, 1000.0, DECIMAL) + "FLOP"


def share_text(share: float) -> str:
    """`41.0%`."""
    return f"{share:.1%}"


def _scaled(value: float, base: float, units: tuple[str, ...]) -> str:
    step = 0
    while abs(value) >= base and step < len(units) - 1:
        value, step = value / base, step + 1
    return f"{_digits(value)} {units[step]}"


def _digits(value: float) -> str:
    if value == int(value) and abs(value) < 1000:
        return str(int(value))
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.3g}"


# Wide enough for the plan table; a terminal keeps its own width.
PLAIN_WIDTH = 120


class Harmless:
    """A view in which nothing is left that a terminal would obey, whoever named what it shows."""

    def __init__(self, view: RenderableType) -> None:
        self._view = view

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        for segment in console.render(self._view, options):
            yield segment if segment.control else Segment(harmless(segment.text), segment.style)


def plain(view: RenderableType) -> str:
    """The view as text without colour."""
    buffer = io.StringIO()
    Console(file=buffer, width=PLAIN_WIDTH, color_system=None, highlight=False).print(Harmless(view))
    return "\n".join(line.rstrip() for line in buffer.getvalue().splitlines())


def show(view: RenderableType) -> None:
    """Print the view on standard output."""
    if sys.stdout.isatty():
        Console(highlight=False).print(Harmless(view))
    else:
        print(plain(view), flush=True)


def table(*columns: str, left: int = 1) -> Table:
    """An empty table; the first `left` columns are aligned left, the others (numbers) right."""
    made = Table(box=SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    made.show_edge = False
    for index, column in enumerate(columns):
        made.add_column(column, justify="left" if index < left else "right", overflow="fold")
    return made


def titled(title: str, body: RenderableType) -> Group:
    """A table under its title, an empty line before it."""
    return Group(Text(""), Text(title, style="bold"), body)
