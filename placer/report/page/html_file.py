"""One HTML file of sections, with Bokeh's script in it. A content policy forbids it to load anything."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.resources import files

from placer.report.page.charts import Section, embedded, library
from placer.report.page.markup import Markup, text

# Nothing is loaded; scripts and styles are those in the file; pictures are those a chart saves of itself.
POLICY = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data: blob:"


def html_file(title: str, figures: Markup, sections: Sequence[Section]) -> str:
    """The file: its title, `figures` below it, links to the sections, the sections."""
    charts = [part for section in sections for part in section.parts if not isinstance(part, str)]
    script, places = embedded(charts)
    found = iter(places)
    bodies = [
        f'<section><h2 id="{_anchor(section)}">{text(section.title)}</h2>'
        + "".join(part if isinstance(part, str) else next(found) for part in section.parts)
        + "</section>"
        for section in sections
    ]
    links = "".join(f'<a href="#{_anchor(section)}">{text(section.title)}</a>' for section in sections)
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{text(title)}</title>'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">'
        f'<meta name="viewport" content="width=device-width, initial-scale=1"><style>{_data("page.css")}</style>'
        f"{library()}</head><body><main><h1>{text(title)}</h1>{figures}"
        f'<nav aria-label="Sections">{links}</nav>{"".join(bodies)}</main>{script}<script>{_data("page.js")}</script>'
        "</body></html>\n"
    )


def _anchor(section: Section) -> str:
    return "-".join(section.title.lower().split())


def _data(name: str) -> str:
    return (files("placer.report.page") / name).read_text()
