"""`placer doctor`: what is installed, what this machine is, what would work."""

from __future__ import annotations

import typer
from rich.console import Group, RenderableType
from rich.text import Text

from placer.cli.options import Json
from placer.cli.output import print_result
from placer.doctor import Finding, examine
from placer.report.printing import table, titled

NAME = "doctor"
HELP = """Say what is installed, what this machine is, and what would work.

Example: placer doctor
"""


def run(json: Json = False) -> None:
    """Examine, print; exit 1 where something needed is missing."""
    findings = examine()
    print_result(
        _view(findings),
        {
            "fine": all(finding.fine for finding in findings),
            "findings": [
                {"group": f.group, "name": f.name, "found": f.found, "fine": f.fine, "advice": f.advice}
                for f in findings
            ],
        },
        json,
    )
    if not all(finding.fine for finding in findings):
        raise typer.Exit(1)


def _view(findings: tuple[Finding, ...]) -> RenderableType:
    groups: list[RenderableType] = []
    for group in dict.fromkeys(finding.group for finding in findings):
        view = table("", "found", "", left=3)
        for finding in findings:
            if finding.group == group:
                view.add_row(
                    finding.name, finding.found, Text(finding.advice, style="" if finding.fine else "bold red")
                )
        groups.append(titled(group, view))
    return Group(*groups)
