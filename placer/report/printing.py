"""Tables on a terminal in colour, elsewhere as plain text of a fixed width."""

from __future__ import annotations

import io
import sys

from rich.box import SIMPLE_HEAD
from rich.console import Console, RenderableType
from rich.table import Table

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


def table(title: str, *columns: str, left: int = 1) -> Table:
    """An empty table; the first `left` columns are aligned left, the others (numbers) right."""
    made = Table(
        title=title, title_justify="left", title_style="bold", box=SIMPLE_HEAD, show_edge=False, pad_edge=False
    )
    for index, column in enumerate(columns):
        made.add_column(column, justify="left" if index < left else "right", overflow="fold")
    return made
