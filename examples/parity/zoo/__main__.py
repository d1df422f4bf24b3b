"""Models that nobody here had thought of, under every layout their size allows, against a plain PyTorch loop.

python -m examples.parity.zoo                                  all of them
python -m examples.parity.zoo --family 2 --layouts quick       one family, five layouts
python -m examples.parity.zoo --only Whitened --layout data=2  models and layouts whose names hold a text
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import re
import sys
import time
from collections import Counter
from itertools import groupby
from pathlib import Path

from examples.parity.zoo.families import ENTRIES, FAMILIES
from examples.parity.zoo.judged import Judged, judged
from placer.runtime.distributed.rank_pool import RankPool

# Models captured before ranks are forked, which then know them; ranks of the largest layout.
MODELS, RANKS = 10, 4
# Lines of what was said of a case, where models are asked for by name.
FULL = 12
_NAMED = re.compile(r"[\w.]*(Error|Exception)\b|ranks \[")
BAD = ("WRONG", "crash", "broken")
VERDICTS = ("equal", "refused", *BAD)


def main(argv: list[str] | None = None) -> int:
    """Run the cases, print a line for each and a table; 0 where none is wrong or crashed."""
    options = _options(argv)
    chosen = [one for one in ENTRIES if options.family in (0, one.family) and options.only.lower() in one.name.lower()]
    cases: list[Judged] = []
    began = time.perf_counter()
    with RankPool(RANKS) as pool:
        for first in range(0, len(chosen), MODELS):
            with contextlib.redirect_stderr(io.StringIO()):
                some = chosen[first : first + MODELS]
                for case in judged(pool, some, options.layouts, options.layout, options.seed):
                    cases.append(case)
                    print(line(case, full=bool(options.only)), flush=True)
            if options.json:
                Path(options.json).write_text(json.dumps([_row(case) for case in cases], indent=1))
    print(table(cases))
    print(listed(cases))
    print(f"{len(chosen)} models, {len(cases)} cases, {time.perf_counter() - began:.0f} s")
    return 1 if any(case.verdict in BAD for case in cases) else 0


def line(case: Judged, *, full: bool = False) -> str:
    """A case in one line; the end of what was said, or all of it."""
    said = "\n".join(case.told.strip().splitlines()[-FULL:]) if full else _said(case)
    return f"{case.verdict:8} {case.entry.family} {case.entry.name:24} {case.layout:22} {said}"


def table(cases: list[Judged]) -> str:
    """Families by verdicts."""
    counts: Counter[tuple[int, str]] = Counter((case.entry.family, case.verdict) for case in cases)
    lines = [f"{'family':32}" + "".join(f"{verdict:>9}" for verdict in VERDICTS)]
    for family, name in FAMILIES.items():
        row = [counts[family, verdict] for verdict in VERDICTS]
        if any(row):
            lines.append(f"{family} {name:30}" + "".join(f"{count:9}" for count in row))
    lines.append(f"{'refused needlessly':32}{'':9}{sum(case.needless for case in cases):9}")
    sums = [sum(count for (_, found), count in counts.items() if found == verdict) for verdict in VERDICTS]
    return "\n".join([*lines, f"{'all':32}" + "".join(f"{count:9}" for count in sums)])


def listed(cases: list[Judged]) -> str:
    """The bad ones: models with their layouts and what was said of the first."""
    lines = []
    for (verdict, name), group in groupby(
        sorted((case for case in cases if case.verdict in BAD), key=_place), key=lambda case: _place(case)[1:]
    ):
        found = list(group)
        lines += [f"{verdict} {name}: {', '.join(case.layout for case in found)}", f"    {_said(found[0])}"]
    return "\n".join(lines)


def _place(case: Judged) -> tuple[int, str, str]:
    return case.entry.family, case.verdict, case.entry.name


def _said(case: Judged) -> str:
    """The line of what was said that names an error, else its end."""
    lines = [line.strip() for line in case.told.splitlines() if line.strip()]
    named = [line for line in lines if _NAMED.match(line)] if case.verdict == "crash" else []
    return (named or lines or [""])[-1][:300]


def _row(case: Judged) -> dict[str, object]:
    return {
        "model": case.entry.reference, "family": case.entry.family, "layout": case.layout, "verdict": case.verdict,
        "told": case.told, "needless": case.needless,
    }  # fmt: skip


def _options(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--family", type=int, default=0, help="only this family")
    parser.add_argument("--only", default="", help="models whose name holds this text; all that was said is printed")
    parser.add_argument("--layouts", choices=("quick", "all"), default="all", help="how many layouts of each")
    parser.add_argument("--layout", default="", help="layouts whose name holds this text")
    parser.add_argument("--seed", type=int, default=0, help="of the batches")
    parser.add_argument("--json", default="", help="write the cases to this file")
    return parser.parse_args(argv)


if __name__ == "__main__":
    sys.exit(main())
