"""What pydantic has against a file, in one short line: the field, what is wrong with it, what was found there."""

from __future__ import annotations

from pydantic import ValidationError

# Of what a file says no more is repeated than tells it.
MOST_SHOWN = 80


def refused(error: ValidationError) -> str:
    """`settings.betas.0: Input should be less than 1 (found 1.5)`, of the first field that is wrong."""
    first = error.errors(include_url=False)[0]
    where = ".".join(short(part) for part in first["loc"][:12])
    message = first["msg"].removeprefix("Value error, ")
    given = first["input"]
    plain = isinstance(given, int | float | str | None) and first["type"] not in ("missing", "json_invalid")
    found = f" (found {short(given)})" if plain else ""
    return f"{where}{': ' if where else ''}{short(message, 400)}{found}"


def short(value: object, most: int = MOST_SHOWN) -> str:
    """`value` as text, of at most so many characters."""
    text = _text(value)
    return text if len(text) <= most else f"{text[: most - 3]}..."


def _text(value: object) -> str:
    if isinstance(value, int) and value.bit_length() > 10_000:
        return f"a number of {value.bit_length()} bits"  # Python writes none of more than 4,300 digits
    return str(value)
