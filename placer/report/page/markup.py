"""HTML of texts and tables. Whatever comes from outside passes `text`, so that it stays text."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from typing import TypeAlias

from placer.io.terminal import harmless

Markup: TypeAlias = str

# Characters of a name that a cell shows; names of models and ops are shorter.
LONGEST = 160


def text(value: object, longest: int = LONGEST) -> Markup:
    """A value as HTML that says just that, shortened where it is too long to read."""
    return escape(shortened(value, longest))


def shortened(value: object, longest: int = LONGEST) -> str:
    """A value in so many characters, none of which a screen would obey; not yet HTML."""
    said = harmless(str(value))
    return said if len(said) <= longest else f"{said[: longest - 1]}…"


def paragraph(value: object, longest: int = 2_000) -> Markup:
    """A text of several lines."""
    return f"<p>{text(value, longest).replace(chr(10), '<br>')}</p>"


def table(headers: Sequence[str], rows: Iterable[Sequence[object]], left: int = 1) -> Markup:
    """A table that scrolls sideways by itself where it is wider than the screen; the first `left` columns are words."""
    head = "".join(f'<th scope="col"{_side(at, left)}>{text(name)}</th>' for at, name in enumerate(headers))
    body = "".join(
        "<tr>" + "".join(f"<td{_side(at, left)}>{text(cell)}</td>" for at, cell in enumerate(row)) + "</tr>"
        for row in rows
    )
    return f'<div class="wide" tabindex="0"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def heading(value: object) -> Markup:
    """The title of a chart or table within a section."""
    return f"<h3>{text(value)}</h3>"


def folded(summary: str, inner: Markup) -> Markup:
    """What is shown once it is asked for."""
    return f"<details><summary>{text(summary)}</summary>{inner}</details>"


def counted(count: int, name: str) -> str:
    """`1 node`, `2 nodes`."""
    return f"{count} {name}{'' if count == 1 else 's'}"


def cards(entries: Iterable[tuple[str, str]]) -> Markup:
    """Figures with what they are."""
    shown = "".join(f"<div><dt>{text(name)}</dt><dd>{text(value)}</dd></div>" for name, value in entries)
    return f'<dl class="cards">{shown}</dl>'


def swatch(color: str) -> Markup:
    """A small square of a colour of ours."""
    return f'<span class="swatch" style="background:{escape(color)}"></span>'


def _side(at: int, left: int) -> str:
    return ' class="word"' if at < left else ""
