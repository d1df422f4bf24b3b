"""Tables on a terminal in colour, elsewhere as plain text of a fixed width."""

from __future__ import annotations

import io
import sys

from rich.box import SIMPLE_HEAD
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

# Wide enough for the plan table; a terminal keeps its own width.
PLAIN_WIDTH = 120


def plain(view: RenderableType) -> str:
    """The view as text without colour."""
    buffer = io.StringIO()
    Console(file=buffer, width=PLAIN_WIDTH, color_system=None, highlight=False).print(view)
    return "\n".join(line.rstrip() for line in buffer.getvalue().splitlines())


def show(view: RenderableType) -> None:
    """Print the view on standard output."""
    if sys.stdout.isatty():
        Console(highlight=False).print(view)
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
