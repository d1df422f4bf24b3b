"""`placer data`: what the way of training data to the devices sustains, what binds there, and what would help."""

from __future__ import annotations

import typer

from placer.cli.commands.data.measure import measure
from placer.cli.commands.data.pack import pack
from placer.cli.commands.data.path import path

app = typer.Typer(
    name="data", help="Training data on its way to the devices: planned, packed, measured.", no_args_is_help=True,
    rich_markup_mode=None,
)  # fmt: skip
app.command("path")(path)
app.command("pack")(pack)
app.command("measure")(measure)


@app.callback()
def shared() -> None:
    """What comes before any command of the group."""
