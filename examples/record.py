"""Runs a measuring command and keeps what it printed as a dated file beside it: what README files may quote.

    python -m examples.record measured.scale gpt3 llama          writes examples/measured/results/scale.txt
    python -m examples.record --as scale-uncut measured.scale uncut
    python -m examples.record --command bench-runtime placer bench runtime --rounds 30

The file says the command, the day, the processor and the versions; it appears whole or not at all, and only where the
command ended well (its exit code is this one's).
"""

from __future__ import annotations

import argparse
import datetime
import platform
import shlex
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from placer.io.files import write_text
from placer.io.versions import versions

EXAMPLES = Path(__file__).resolve().parent


def header(command: str) -> str:
    """What a reader needs to judge the numbers."""
    installed = ", ".join(f"{name} {version}" for name, version in versions() if name != "machine")
    return f"$ {command}\n{datetime.date.today()}, {processor()}, Python {platform.python_version()}, {installed}\n\n"


def processor() -> str:
    """The processor's name and the cores this process sees."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return f"{len(names) or '?'} cores of {names[0] if names else platform.machine()}"


def printed(command: Sequence[str]) -> tuple[int, str]:
    """The exit code and the output of a command, which is shown as it comes."""
    text = []
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            print(line, end="", flush=True)
            text.append(line)
    return process.returncode, "".join(text)


def main() -> None:
    """Run, show, keep."""
    parser = argparse.ArgumentParser(prog="python -m examples.record", description=__doc__)
    parser.add_argument("--as", dest="name", help="the name of the file (the module's own where it is left out)")
    parser.add_argument(
        "--command", metavar="NAME", help="what follows is a shell command, kept as measured/results/NAME"
    )
    parser.add_argument("words", nargs=argparse.REMAINDER, help="FOLDER.MODULE of examples and its arguments")
    given = parser.parse_args()
    if not given.words:
        parser.error("name what is to be run: measured.scale gpt3")
    if given.command:
        command, folder, name = given.words, "measured", given.command
        shown = shlex.join(command)
    else:
        module, *arguments = given.words
        folder, _, name = module.rpartition(".")
        command = [sys.executable, "-m", f"examples.{module}", *arguments]
        shown = shlex.join(["python", *command[1:]])
    code, text = printed(command)
    if code:
        sys.exit(code)
    target = EXAMPLES / folder / "results" / f"{given.name or name}.txt"
    target.parent.mkdir(exist_ok=True)
    write_text(target, header(shown) + text)
    print(f"kept as {target}", file=sys.stderr)


if __name__ == "__main__":
    main()
