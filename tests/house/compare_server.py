"""The process of one checkout that `compare_checkouts.py` starts, in the checkout's root and by its interpreter.

Standard input names a folder, a number and a command, a line of JSON each; standard output answers with the processor
seconds that it took. Libraries are imported once: each command runs in a fork of this process, whose working folder is
the given one. `NUMBER.COMMAND.out`, `.err` and `.exit` are left there; of a command that ranks run, those of each.
"""

from __future__ import annotations

import atexit
import json
import os
import runpy
import shlex
import signal
import socket
import subprocess
import sys
from pathlib import Path

from compare_cases import MOVED

LIMIT_SECONDS = 1800
SMALL = "plan examples.models:tiny_gpt2 --cluster h100x2 --batch 8x12"
# Checkpoints keep random states; by itself a process begins with one of its own.
SAME_START = "import placer; placer.runtime; import torch; torch.manual_seed(0)"


def main() -> None:
    """Import what commands need, by running a small one, then answer until standard input ends."""
    asked, told = os.fdopen(os.dup(0)), os.fdopen(os.dup(1), "w")
    with open(os.devnull, "r+") as nothing:
        for stream in (0, 1):
            os.dup2(nothing.fileno(), stream)
    sys.path[0] = os.getcwd()
    work(shlex.split(SMALL))
    work(["python", SAME_START])
    for line in asked:
        folder, number, command = json.loads(line)
        print(run(Path(folder), number, shlex.split(command)), file=told, flush=True)


def run(folder: Path, number: int, words: list[str]) -> float:
    """Run one command, by as many ranks as it asks for: seconds of processors."""
    ranks = int(words.pop(0).removeprefix("ranks=")) if words[0].startswith("ranks=") else 0
    name = folder / f"{number:02}.{words[0]}"
    files = [f"{name}.rank{rank}" for rank in range(ranks)] if ranks else [str(name)]
    places: list[dict[str, str]] = _places(ranks) if ranks else [{}]
    children = [_forked(folder, file, words, place) for file, place in zip(files, places, strict=True)]
    seconds = 0.0
    for child, file in zip(children, files, strict=True):
        _, status, spent = os.wait4(child, 0)
        seconds += spent.ru_utime + spent.ru_stime
        Path(f"{file}.exit").write_text(str(os.waitstatus_to_exitcode(status)))
    return seconds


def _places(ranks: int) -> list[dict[str, str]]:
    """What torchrun would tell each rank."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    world = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": str(ranks)}
    return [{"RANK": str(rank), "LOCAL_RANK": str(rank), **world} for rank in range(ranks)]


def _forked(folder: Path, file: str, words: list[str], place: dict[str, str]) -> int:
    """The process id of a child that does what `words` say and ends."""
    child = os.fork()
    if child:
        return child
    signal.alarm(LIMIT_SECONDS)
    os.chdir(folder)
    os.environ |= place
    for stream, kind in ((1, "out"), (2, "err")):
        with open(f"{file}.{kind}", "wb") as opened:
            os.dup2(opened.fileno(), stream)
    code = work(words)
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # taking an interpreter with as many imports apart takes seconds


def work(words: list[str]) -> int:
    """Do what a command says, in this process: the exit code."""
    try:
        if words[0] == "python":
            exec(words[1], {"__name__": "__main__"})
        elif words[0] == "torchrun":
            return subprocess.call([sys.executable, "-m", "torch.distributed.run", *words[1:]])
        elif words[0] == "-m":
            sys.argv = words[1:]
            runpy.run_module(_present(words[1]), run_name="__main__", alter_sys=True)
        else:
            sys.argv = ["placer", *words]
            runpy.run_module("placer", run_name="__main__")
    except SystemExit as ended:
        return ended.code if isinstance(ended.code, int) else int(bool(ended.code))
    return 0


def _present(module: str) -> str:
    """The module, or where it may have moved to."""
    is_there = Path(*module.split(".")).with_suffix(".py").exists()
    return module if is_there else MOVED[module]


if __name__ == "__main__":
    main()
