"""Plans, clusters, configurations and checkpoints that somebody spoilt, read as placer's commands read them.

python -m examples.parity.fuzz --cases 10000 --seed 7                     of every kind
python -m examples.parity.fuzz --cases 10000 --seed 7 --kind cluster      of one kind
python -m examples.parity.fuzz --seed 7 --kind plan --case 123            one of them: the file, and what became of it

A spoilt file is to be refused in words, or to be read where it still makes sense. What else may become of it:
`nonsense`, it was read and says what nothing can mean; `unclear`, a refusal of no words or thousands, or characters
that a terminal obeys; `crash`, another exception than placer's; `hang` and `memory`, more than 10 s of a processor or
1 GiB. Each of these is kept with what was seen in --keep, and named; the exit code is then 1.
"""

from __future__ import annotations

import argparse
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from examples.parity.fuzz.reading import KINDS, Case, Kind
from examples.parity.fuzz.run import Kept, Run
from examples.parity.fuzz.verdicts import GOOD, OUTCOMES

# Files of a round of every kind.
ROUND = 10_000
# Of a hundred files of every kind.
SHARES: dict[Kind, int] = {"plan": 65, "cluster": 32, "config": 1, "checkpoint": 2}


def main(argv: list[str] | None = None) -> int:
    """Read the files and print the table; 0 where nothing bad became of any."""
    options = _options(argv)
    counts: Counter[tuple[str, str]] = Counter()
    seconds: dict[str, float] = {}
    kept = Kept(Path(options.keep), options.seed)
    for ending in (signal.SIGINT, signal.SIGTERM):  # a run that is ended tells what it has seen
        signal.signal(ending, signal.default_int_handler)
    with tempfile.TemporaryDirectory(dir=_memory()) as folder, suppress(KeyboardInterrupt):
        runs = {kind: Run.of(kind, options.seed, Path(folder)) for kind in ((options.kind,) if options.kind else KINDS)}
        if options.case is not None:
            print(runs[options.kind].told(options.case))
            return 0
        for kind, numbers in _rounds(tuple(runs), options.first, options.cases):
            began = time.perf_counter()
            for number, found in runs[kind].verdicts(numbers):
                counts[kind, found.outcome] += 1
                if found.outcome not in GOOD:
                    kept.keep(Case(kind=kind, seed=options.seed, number=number), found, runs[kind])
            seconds[kind] = seconds.get(kind, 0.0) + time.perf_counter() - began
            if sum(counts.values()) % options.every == 0:
                print(f"{sum(counts.values())} files, {kept.count} bad", flush=True)
    print(_table(counts, seconds, options.seed))
    print(kept.sorts())
    return 1 if kept.count else 0


def _rounds(kinds: tuple[Kind, ...], first: int, cases: int) -> Iterator[tuple[Kind, range]]:
    """The numbers of the files by kind, in rounds of every kind: a run that is ended early has seen them all."""
    whole = sum(SHARES[kind] for kind in kinds)
    done = 0
    while done < cases:
        size = min(ROUND, cases - done)
        for kind in kinds:
            own = slice(done * SHARES[kind] // whole, (done + size) * SHARES[kind] // whole)
            yield kind, range(first + own.start, first + own.stop)
        done += size


def _options(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=10_000, help="how many files")
    parser.add_argument("--first", type=int, default=0, help="the number of the first file of each kind")
    parser.add_argument("--seed", type=int, default=7, help="of everything that is drawn")
    parser.add_argument("--kind", choices=KINDS, default=None, help="of this kind only")
    parser.add_argument("--case", type=int, default=None, help="with --kind: this one only, with what it says")
    parser.add_argument("--keep", default="fuzz-failures", help="the folder for files of which something bad became")
    parser.add_argument("--every", type=int, default=50_000, help="a line of progress after so many files")
    options = parser.parse_args(argv)
    if options.case is not None and options.kind is None:
        parser.error("--case is the number of a file of one kind: give --kind too")
    return options


def _memory() -> str | None:
    """A folder in memory where there is one: files are written by the hundred a second."""
    return "/dev/shm" if Path("/dev/shm").is_dir() else None


def _table(counts: Counter[tuple[str, str]], seconds: dict[str, float], seed: int) -> str:
    lines = [f"seed {seed:<10}" + "".join(f"{name:>10}" for name in (*OUTCOMES, "files", "files/s"))]
    for kind in seconds:
        of = [counts[kind, outcome] for outcome in OUTCOMES]
        rate = sum(of) / max(1e-9, seconds[kind])
        lines.append(f"{kind:15}" + "".join(f"{one:10}" for one in of) + f"{sum(of):10}{rate:10.0f}")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
