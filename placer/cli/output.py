"""Printing a result: a view for people, a document for machines, never both."""

from __future__ import annotations

import json
import os

from rich.console import RenderableType

from placer.report.documents import Document
from placer.report.printing import show


def print_result(view: RenderableType, document: Document, as_json: bool) -> None:
    """Print one of the two on standard output."""
    if as_json:
        print(json.dumps(document, indent=1))
    else:
        show(view)


def first_rank() -> bool:
    """Whether this process speaks for all: rank 0 under torchrun, and any process without it."""
    return os.environ.get("RANK", "0") == "0"
