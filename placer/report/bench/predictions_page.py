"""The table of errors as one HTML page that opens without a network."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from pathlib import Path

from placer.io.files import write_text
from placer.report.bench.predictions_table import COLUMNS, cells
from placer.strategies.predictions.errors import Slice

STYLE = """
:root { color-scheme: light dark; font-family: system-ui, sans-serif; }
body { margin: 2rem auto; max-width: 75rem; padding: 0 1rem; }
div { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { padding: .25rem .6rem; text-align: right; border-bottom: 1px solid #8884; }
th:first-child, td:first-child { text-align: left; }
"""
TOLD = (
    "Rows of published tables, each built as a model, laid out as its row says and estimated by the code that searches "
    "use. MAPE: mean of |predicted / measured - 1|. constant, 6N: the least MAPE that one share of the devices' peak "
    "rate reaches on the very rows it is judged on. inside: rows within the stated 80% interval. bytes: MAPE and bias."
)


def write_page(path: Path, slices: Sequence[Slice]) -> None:
    """Write the page, all or nothing."""
    write_text(path, page(slices))


def page(slices: Sequence[Slice]) -> str:
    """The page's text; names are escaped."""
    head = "".join(f"<th scope=col>{escape(name)}" for name in COLUMNS)
    body = "".join(f"<tr>{''.join(f'<td>{escape(cell)}' for cell in cells(one))}" for one in slices)
    return (
        "<!doctype html><html lang=en><meta charset=utf-8><meta name=viewport content='width=device-width'>"
        f"<title>placer: predictions beside measurements</title><style>{STYLE}</style>"
        f"<h1>Predictions beside measurements</h1><p>{escape(TOLD)}</p>"
        f"<div><table><thead><tr>{head}</thead><tbody>{body}</tbody></table></div></html>"
    )
