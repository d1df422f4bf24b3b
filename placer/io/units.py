"""Quantities with units as people write them: `80 GiB`, `400 Gb/s`, `5 us`, `312 TFLOP/s`.

In: text and a kind of quantity. Out: a float in bytes, bytes/second, seconds or FLOP/s. Decimal arithmetic, so that
what `written` writes `quantity` reads back to the last bit.
"""

from __future__ import annotations

import re
from decimal import Decimal
from typing import Literal

from placer.errors import UsageError
from placer.io.refusals import short

Kind = Literal["bytes", "bandwidth", "seconds", "rate", "flops"]

_DECIMAL = {"": 1, "k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "P": 10**15, "E": 10**18}
_BINARY = {"Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40, "Pi": 2**50}


def _units() -> dict[Kind, dict[str, Decimal]]:
    """Every unit of every kind with its size in the kind's own unit."""
    prefixes = {**_DECIMAL, "K": 10**3, **_BINARY}
    sizes = {f"{p}B": Decimal(s) for p, s in prefixes.items()}
    bits = {f"{p}{b}": Decimal(s) / 8 for p, s in prefixes.items() for b in ("b", "bit")}
    flops = {f"{p}FLOP": Decimal(s) for p, s in _DECIMAL.items()}
    return {
        "bytes": sizes,
        "bandwidth": {f"{u}{per}": s for u, s in {**sizes, **bits}.items() for per in ("/s", "ps")},
        "seconds": {
            "s": Decimal(1),
            "ms": Decimal("1e-3"),
            "us": Decimal("1e-6"),
            "µs": Decimal("1e-6"),
            "ns": Decimal("1e-9"),
        },
        "rate": {f"{u}{per}": s for u, s in flops.items() for per in ("/s", "S", "s")},
        "flops": flops,
    }


UNITS = _units()

# What `written` chooses from, largest first.
_PREFERRED: dict[Kind, tuple[str, ...]] = {
    "bytes": ("TiB", "GiB", "MiB", "KiB", "B"),
    "bandwidth": ("TB/s", "GB/s", "MB/s", "kB/s", "B/s"),
    "seconds": ("s", "ms", "us", "ns"),
    "rate": ("PFLOP/s", "TFLOP/s", "GFLOP/s", "MFLOP/s", "FLOP/s"),
    "flops": ("PFLOP", "TFLOP", "GFLOP", "MFLOP", "kFLOP", "FLOP"),
}
EXAMPLES: dict[Kind, str] = {
    "bytes": "80 GiB",
    "bandwidth": "400 Gb/s or 50 GB/s",
    "seconds": "5 us",
    "rate": "312 TFLOP/s",
    "flops": "2 GFLOP",
}
_TEXT = re.compile(r"\s*([-+]?(?:\d[\d_]*\.?\d*|\.\d+)(?:[eE][-+]?\d+)?)\s*(\S*)\s*")


def quantity(text: object, kind: Kind) -> float:
    """`text` in the kind's own unit: bytes, bytes/second, seconds, FLOP/s or FLOPs.

    Raises UsageError for no number, no unit or an unknown unit; a plain 0 needs no unit.
    """
    match = _TEXT.fullmatch(short(text))
    if isinstance(text, bool) or match is None:
        raise UsageError(f"{short(repr(text))} is no quantity; write a number and a unit, like {EXAMPLES[kind]}")
    unit = match[2]
    try:
        number = Decimal(match[1])
        if unit in UNITS[kind]:
            return float(number * UNITS[kind][unit])
    except ArithmeticError:  # an exponent of a billion, or one of more digits than Decimal reads
        raise UsageError(f"{short(repr(text))} is beyond all numbers; write it like {EXAMPLES[kind]}") from None
    if not unit and number == 0:
        return 0.0
    if not unit:
        raise UsageError(f"{text!r} has no unit; write it like {EXAMPLES[kind]}")
    raise UsageError(f"unknown unit {unit!r} in {text!r}; write it like {EXAMPLES[kind]} (known: {known_units(kind)})")


def known_units(kind: Kind) -> str:
    """The units of a kind for a message."""
    if kind == "bandwidth":
        return "B/s, kB/s, MB/s, GB/s, TB/s, KiB/s, MiB/s, GiB/s for bytes, b/s, Mb/s, Gb/s, Tb/s for bits"
    if kind == "bytes":
        return "B, kB, MB, GB, TB, KiB, MiB, GiB, TiB"
    return ", ".join(reversed(_PREFERRED[kind]))


def written(value: float, kind: Kind) -> str:
    """`value` with the largest unit that leaves at least one of it; `quantity` reads it back to the same float."""
    exact = Decimal(repr(value)) if isinstance(value, float) else Decimal(value)
    for unit in _PREFERRED[kind]:
        number = exact / UNITS[kind][unit]
        if abs(number) >= 1 and quantity(f"{number:f} {unit}", kind) == value and len(f"{number:f}") <= 20:
            return f"{_plain(number)} {unit}"
    smallest = _PREFERRED[kind][-1]
    return f"{_plain(exact / UNITS[kind][smallest]) if value else 0} {smallest}"


def room_text(size: float) -> str:
    """Bytes that are needed or there, with two digits: `79.15 GiB`, of less than a tenth of one `24.42 MiB`."""
    for exponent, unit in ((30, "GiB"), (20, "MiB"), (10, "KiB")):
        if 10 * size >= 2**exponent:
            return f"{size / 2**exponent:.2f} {unit}"
    return f"{size:.0f} B"


def _plain(number: Decimal) -> str:
    """`number` without exponent and trailing zeros."""
    text = f"{number:f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


_LONG = {"min": 60.0, "h": 3600.0, "d": 86400.0}


def duration(text: str) -> float:
    """Seconds of `90min`, `24h`, `3d`, or of what `quantity` reads (`30 s`). Raises UsageError for what is no time."""
    found = _TEXT.fullmatch(text)
    if found is not None and found[2] in _LONG and float(found[1]) > 0:
        return float(found[1]) * _LONG[found[2]]
    try:
        seconds = quantity(text, "seconds")
    except UsageError:
        seconds = 0.0
    if not 0 < seconds < float("inf"):
        raise UsageError(f"{short(repr(text))} is no time above 0; write 30s, 90min, 24h or 3d")
    return seconds
