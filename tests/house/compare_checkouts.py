"""Hold two checkouts of placer against each other: the same commands, byte for byte the same answers.

    python compare_checkouts.py OLD NEW                 every case; exit 1 where one differs
    python compare_checkouts.py OLD NEW --quick         without those at scale
    python compare_checkouts.py OLD NEW --only "run "   those whose name holds the words (may be repeated); see --list

For a change that moves code and must change nothing that anybody sees. `compare_cases.toml` says what is run:

    plans of every model of the examples, on equal and unequal machines, with every pin, strategy and setting
    every command on a plan, as text and as JSON; the help of every command; the public names with their signatures
    a dozen kinds of misuse
    training of two ranks under every kind of plan: trained to a checkpoint by OLD, gone on with by both
    the plans of examples.scale, and with --shared FOLDER published placement problems

Each checkout has one process, by CHECKOUT/.venv/bin/python where that is there, else by this interpreter with the
checkout as PYTHONPATH. It has imported placer and forks a child for each command, which runs in a fresh folder.
Compared are, of every command, standard output, standard error and exit code, and every file in the folder at the end
of the case: plans, traces, logs, checkpoints, weights. Values that are measured differ from run to run; the table lists
each with its reason, and nothing else is masked. Names of modules in MOVED are taken for one another.

A line a case: its bytes, exit codes other than 0, and processor seconds of OLD and NEW with their ratio, which is
printed and not judged, as that of imports is. Of a case that differs, each file with the first value that differs.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from compare_cases import FILES, MOVED, Case, cases, is_measured, unmeasured

SERVER = Path(__file__).with_name("compare_server.py")
SETUP = "old: "
IMPORTS = ("import placer.cli", "import placer; placer.plan, placer.runtime")
_NUMBER = re.compile(rb"-?\d+(\.\d+)?(e[-+]\d+)?")


class Checkout:
    """A checkout, the process that runs its commands, and the folders in which it ran them."""

    def __init__(self, root: Path, work: Path, name: str) -> None:
        self.root, self.work, self.seconds = root.resolve(), work / name, 0.0
        python = self.root / ".venv/bin/python"
        self.python = str(python) if python.exists() else sys.executable
        self.environment = {
            **os.environ, "PYTHONPATH": str(self.root), "XDG_CACHE_HOME": str(work / "cache"), "OMP_NUM_THREADS": "1",
            "COLUMNS": "120", "TERM": "dumb", "GLOO_SOCKET_IFNAME": "lo",
        }  # fmt: skip
        self.process = subprocess.Popen(
            [self.python, str(SERVER)], cwd=self.root, env=self.environment, text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        )  # fmt: skip

    def __enter__(self) -> Checkout:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()

    def prepare(self, case: Case) -> None:
        """An empty folder for the case, where it has none, with what each case finds there."""
        folder = self.work / case.folder
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "examples").symlink_to(self.root / "examples")
        for name, text in FILES.items():
            (folder / name).write_text(text)

    def run(self, case: Case, *, setup: bool) -> float:
        """Run the commands that set the case up, or the others: seconds of processors."""
        numbered = [each for each in enumerate(case.commands) if each[1].startswith(SETUP) is setup]
        seconds = sum(self._ask(case, number, command.removeprefix(SETUP)) for number, command in numbered)
        self.seconds += 0.0 if setup else seconds
        return seconds

    def _ask(self, case: Case, number: int, command: str) -> float:
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write(json.dumps((str(self.work / case.folder), number, command)) + "\n")
        self.process.stdin.flush()
        return float(self.process.stdout.readline() or sys.exit(f"the process of {self.root} ended"))

    def import_seconds(self, code: str) -> float:
        """Seconds of a processor that an import takes in a fresh process, the best of three."""
        timed = f"import time; began = time.process_time(); {code}; print(time.process_time() - began)"
        return min(float(subprocess.check_output([self.python, "-c", timed], env=self.environment)) for _ in range(3))


# --- comparing


def differences(case: Case, old: Path, new: Path) -> Iterator[str]:
    """What differs in two folders, file by file, with the command whose number the file bears."""
    for name in sorted(files(old) | files(new)):
        command = " ".join(case.commands[int(name[:2])].split()) if re.match(r"\d\d\.", name) else ""
        if not ((old / name).exists() and (new / name).exists()):
            yield f"{name}: only in {'OLD' if (old / name).exists() else 'NEW'}"
        elif text := difference(name, _read(old, name), _read(new, name)):
            yield f"{name}: {text}" + (f"  ({command:.120})" if command else "")


def files(folder: Path) -> set[str]:
    """The files that a case left."""
    paths = (path.relative_to(folder) for path in folder.rglob("*") if path.is_file())
    return {str(path) for path in paths if path.parts[0] != "examples"}


def _read(folder: Path, name: str) -> bytes:
    """The bytes without where the folder lies, without what is measured, with old names of modules."""
    text = (folder / name).read_bytes().replace(str(folder).encode(), b"FOLDER")
    for old, new in MOVED.items():
        text = text.replace(new.encode(), old.encode())
    return unmeasured(name, text)


def difference(name: str, old: bytes, new: bytes) -> str:
    """The first JSON value, or line, that differs; nothing where all that differs is measured."""
    if old == new:
        return ""
    try:
        before, after = values(old), values(new)
    except ValueError:
        return _first_line(old, new)
    for path in {**before, **after}:
        if before.get(path) != after.get(path) and not is_measured(name, path):
            return f"{path}: {before.get(path, 'missing')!r:.100} -> {after.get(path, 'missing')!r:.100}"
    return "" if _NUMBER.sub(b"0", old) == _NUMBER.sub(b"0", new) else "the same values, written in another way"


def values(text: bytes) -> dict[str, object]:
    """Each value of a JSON document, or of lines of JSON, by its path. Raises ValueError for what is neither."""
    try:
        return dict(_leaves(json.loads(text), "$"))
    except ValueError:
        return dict(_leaves([json.loads(line) for line in text.splitlines()], "$"))


def _leaves(value: object, path: str) -> Iterator[tuple[str, object]]:
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _leaves(inner, f"{path}.{key}")
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            yield from _leaves(inner, f"{path}[{index}]")
    yield (f"{path}.length", len(value)) if isinstance(value, dict | list) else (path, value)


def _first_line(old: bytes, new: bytes) -> str:
    for before, after in zip(old.split(b"\n"), new.split(b"\n"), strict=False):
        if before != after:
            same = next((k for k, (a, b) in enumerate(zip(before, after, strict=False)) if a != b), 0)
            shown = slice(max(0, same - 40), same + 110)
            return f"{before[shown]!r} -> {after[shown]!r}"
    return f"{len(old):,} -> {len(new):,} bytes"


# --- the command


def main() -> int:
    """Parse, run, compare, print: the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkouts", nargs="*", type=Path, metavar="OLD NEW")
    parser.add_argument("--only", action="append", help="cases whose name holds these words; may be repeated")
    parser.add_argument("--quick", action="store_true", help="leave the slow ones out")
    parser.add_argument("--list", action="store_true", help="print the names of the cases")
    parser.add_argument("--jobs", type=int, default=2, help="1: the checkouts always in turns")
    parser.add_argument("--shared", default=os.environ.get("PLACER_SHARED", ""), help="a folder that holds placement/")
    parser.add_argument("--keep", type=Path, help="a new folder in which what the cases left stays")
    given = parser.parse_args()
    found = [case for case in cases(given.shared) if any(words in case.name for words in given.only or [""])]
    chosen = [case for case in found if not (given.quick and case.slow)]
    if given.list:
        print("\n".join(case.name for case in chosen))
        return 0
    if len(given.checkouts) != 2 or not chosen:
        parser.error("give two checkouts, and words that are in the name of a case")
    with ExitStack() as stack:
        work = given.keep or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        pairs = zip(given.checkouts, ("old", "new"), strict=True)
        old, new = (stack.enter_context(Checkout(root, work.resolve(), name)) for root, name in pairs)
        return compare(chosen, old, new, given.jobs)


def compare(chosen: list[Case], old: Checkout, new: Checkout, jobs: int) -> int:
    """Run the cases and print their lines and a summary: the exit code."""
    same = [judge(case, old, new, jobs) for case in chosen]
    for code in IMPORTS:
        print(f"{code}: {ratio(old.import_seconds(code), new.import_seconds(code))}")
    print(f"{sum(same)} of {len(same)} cases the same; all commands {ratio(old.seconds, new.seconds)}")
    return int(not all(same))


def judge(case: Case, old: Checkout, new: Checkout, jobs: int) -> bool:
    """Run a case in both checkouts and print its line: whether it is the same."""
    before, after = old.work / case.folder, new.work / case.folder
    old.prepare(case)
    old.run(case, setup=True)
    shutil.copytree(before, after, ignore=shutil.ignore_patterns("examples", *FILES))
    new.prepare(case)
    with ThreadPoolExecutor(1 if case.alone else jobs) as pool:
        seconds = list(pool.map(partial(Checkout.run, case=case, setup=False), (old, new)))
    found = list(differences(case, before, after))
    codes = Counter(path.read_text() for path in before.glob("*.exit"))
    ended = "".join(f"  exit {code} x{count}" for code, count in sorted(codes.items()) if code != "0")
    size = sum((before / name).stat().st_size for name in files(before))
    print(f"{'DIFFERS' if found else 'same   '}  {case.name}  {size:,} bytes{ended}  {ratio(*seconds)}", flush=True)
    for text in found:
        print(f"         {text}", flush=True)
    return not found


def ratio(old: float, new: float) -> str:
    """Two times and how many times as long the second one is."""
    return f"{old:.1f} -> {new:.1f} s ({new / old:.2f})"


if __name__ == "__main__":
    sys.exit(main())
