"""Numbers that prices are made of say where they are from: a comment above them names a source."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import placer.costs

COSTS = Path(placer.costs.__file__).parent
# What a reader can follow: papers, files of public projects, documentation, datasheets, our own measurements.
SOURCE = re.compile(
    r"arXiv|https?://|[Dd]ocumentation|datasheet|[Gg]uide|et al|[Mm]easure|[\w/]+\.(?:py|h|cu|cuh|cpp|yaml|md)\b|`\w+`|"
    r"\b(?:CUTLASS|IEEE|[Bb]y definition)\b"
)


def unsourced(text: str) -> Iterator[str]:
    """The names of a module's numbers of which neither the comment above them nor that of their group says a source."""
    lines = text.splitlines()
    for node in ast.parse(text).body:
        if not isinstance(node, ast.Assign) or not _is_number(node.value) or not isinstance(node.targets[0], ast.Name):
            continue
        if not SOURCE.search(_told(lines, node.lineno - 1)):
            yield node.targets[0].id


def _is_number(value: ast.expr) -> bool:
    """Whether a value is a number, or several, beside 0 and 1."""
    found = [one.value for one in ast.walk(value) if isinstance(one, ast.Constant)]
    return any(isinstance(one, int | float) and not isinstance(one, bool) and one not in (0, 1) for one in found)


def _told(lines: list[str], at: int) -> str:
    """The lines of the group that a line is in, up to the blank line before it: comments and numbers."""
    first = at
    while first and lines[first - 1].strip():
        first -= 1
    return "\n".join(lines[first : at + 1])


@pytest.mark.parametrize("path", sorted(COSTS.rglob("*.py")), ids=lambda path: str(path.relative_to(COSTS)))
def test_every_number_of_the_costs_says_its_source(path: Path) -> None:
    assert not list(unsourced(path.read_text(encoding="utf-8")))


def test_a_number_without_a_source_is_found() -> None:
    text = "# Slower, as seen.\nFACTOR = 1.17\n\n# arXiv:2205.14135, table 2.\nSHARE = 0.4\nNAME, ONE = 'a', 1\n"
    assert list(unsourced(text)) == ["FACTOR"]
