"""The command line: parse, call one library function, print. Exit 0 done, 1 infeasible or failed, 2 misuse.

A command is a file of a folder of `commands`: its name is the file's, its help the docstring, and `run` has its flags.
"""

from __future__ import annotations

import json
import os
import sys
import time
from contextlib import redirect_stderr, suppress
from typing import Annotated

import typer

from placer.cli.commands.bench import group
from placer.cli.commands.data import group as data_group
from placer.cli.commands.planning import advise, explain, fit, place, plan, replan, schema, simulate, stragglers, sweep
from placer.cli.commands.running import calibrate, demo, doctor, execute, verify, weights
from placer.cli.commands.sharing import compare, export, import_layout, launch, report
from placer.cli.options import first_rank
from placer.errors import PlacerError, UsageError
from placer.io.files import write_text
from placer.io.terminal import HarmlessStream, harmless
from placer.io.versions import installed
from placer.report.documents import error_document

app = typer.Typer(
    name="placer",
    help="Plans how a PyTorch model is laid out on given machines, predicts seconds and bytes, and runs the plan.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
for module in (
    plan,
    replan,
    advise,
    explain,
    fit,
    place,
    sweep,
    stragglers,
    simulate,
    execute,
    verify,
    demo,
    doctor,
    calibrate,
    schema,
    weights,
    export,
    launch,
    report,
    compare,
):
    app.command(module.__name__.rpartition(".")[2], help=module.__doc__)(module.run)
app.command("import", help=import_layout.__doc__)(import_layout.run)
app.add_typer(group.app)
app.add_typer(data_group.app)


def _print_version(asked: bool) -> None:
    if asked:
        print(f"placer {installed('placer-planner')}")
        raise typer.Exit


@app.callback()
def shared(
    version: Annotated[
        bool, typer.Option("--version", is_eager=True, callback=_print_version, help="Print the version and end.")
    ] = False,
) -> None:
    """What comes before any command."""


def main() -> None:
    """Parse the command line and run it; `placer.__main__` is the console script around it."""
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")  # its advice on configurations is not ours to print
    # A console script does not search the current folder, where the user's model lies.
    if "" not in sys.path and os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        with redirect_stderr(HarmlessStream(sys.stderr)):
            app()
    except PlacerError as error:
        _say(error)
        _leave_to_launcher(error)
        sys.exit(error.exit_code)
    except BrokenPipeError:
        # The reader (head, less) has enough; Python would complain again while flushing at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)


def _say(error: PlacerError) -> None:
    """Each rank says what it saw; only rank 0 where every rank finds the same mistake in what it was given."""
    rank = os.environ.get("RANK")
    if isinstance(error, UsageError) and not first_rank():
        return
    if "--json" in sys.argv and first_rank():
        print(json.dumps(error_document(error), indent=1))
    print(f"placer{f' (rank {rank})' if rank else ''}: {harmless(str(error))}", file=sys.stderr)


def _leave_to_launcher(error: PlacerError) -> None:
    """The error where torchrun looks for it, which ends the other ranks before they say theirs (torch.distributed
    .elastic.multiprocessing.errors: what it prints of the rank that failed first)."""
    path = os.environ.get("TORCHELASTIC_ERROR_FILE")
    if path and "RANK" in os.environ:
        text = harmless(str(error))
        told = {"message": text, "extraInfo": {"py_callstack": text, "timestamp": str(int(time.time()))}}
        with suppress(PlacerError):
            write_text(path, json.dumps({"message": told}))
