"""What became of one spoilt file."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from io import StringIO
from itertools import islice
from typing import Literal, get_args

from placer.errors import PlacerError
from placer.io.terminal import HarmlessStream

# In the order of the table. The first two are as it should be.
Outcome = Literal["accepted", "refused", "nonsense", "unclear", "crash", "hang", "memory"]
OUTCOMES: tuple[Outcome, ...] = get_args(Outcome)
GOOD: tuple[Outcome, ...] = ("accepted", "refused")
LONGEST = 8_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """An outcome and, where it is a bad one, what was seen; `sort` is alike where the cause seems to be."""

    outcome: Outcome
    told: str = ""
    sort: str = ""


def judged(read: Callable[[], Iterator[str]]) -> Verdict:
    """The verdict on a reading, which yields what no such file can mean."""
    printed = StringIO()
    try:
        with redirect_stdout(printed), redirect_stderr(HarmlessStream(printed)):  # as the command line has it
            wrong = list(islice(read(), 3))
    except PlacerError as error:
        return _refused(str(error))
    except MemoryError:
        return Verdict(outcome="memory", told=traceback.format_exc(), sort=_place(traceback.format_exc()))
    except RecursionError as error:
        return Verdict(outcome="crash", told=f"RecursionError: {error}", sort="RecursionError")
    except BaseException as error:  # torch's CheckpointException is no Exception
        told = traceback.format_exc()
        return Verdict(outcome="crash", told=told, sort=f"{type(error).__name__} {_place(told)}")
    if wrong:
        return Verdict(outcome="nonsense", told="; ".join(wrong), sort=_words(wrong[0]))
    return Verdict(outcome="accepted") if _harmless(printed.getvalue()) else _unclear("prints control characters")


def _refused(said: str) -> Verdict:
    """A refusal is of some words, and not of thousands."""
    if not said.strip() or len(said) > LONGEST:
        return _unclear(f"a refusal of {len(said)} characters: {said[:200]}")
    return Verdict(outcome="refused", told=said)


def _unclear(why: str) -> Verdict:
    return Verdict(outcome="unclear", told=why, sort=why[:40])


def _harmless(text: str) -> bool:
    return all(character.isprintable() or character in "\n\t" for character in text)


def _place(told: str) -> str:
    """The innermost line of placer's in a traceback."""
    lines = [line.strip() for line in told.splitlines() if "/placer/" in line or "/runtime/" in line]
    return lines[-1].replace('"', "").rpartition("/")[2] if lines else ""


def _words(text: str) -> str:
    return " ".join("#" if any(c.isdigit() for c in word) and "." not in word else word for word in text.split())[:70]
