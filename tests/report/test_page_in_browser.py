"""The page in a real browser: it draws, keys reach what a mouse reaches, and hostile names do no harm."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from test_page import EVIL, LOG, RUN, hostile, page_text, pipeline

pytest.importorskip("bokeh")
playwright = pytest.importorskip("playwright.sync_api")

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
# How much of the step the timeline shows.
SPAN = """() => {
    const models = Bokeh.documents.flatMap((one) => [...one._all_models.values()]);
    const range = models.find((one) => one.tags && one.tags[0] === "timeline").x_range;
    return range.end - range.start;
}"""
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is installed")


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with playwright.sync_playwright() as started:
        opened = started.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield opened
        opened.close()


def opened(browser: Any, path: Path, text: str, **given: Any) -> tuple[Any, list[str]]:
    """The page once it has drawn, and what went wrong in it: errors, and requests that leave the file."""
    path.write_text(text)
    page, wrong = browser.new_context(**given).new_page(), []
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.on("console", lambda said: wrong.append(said.text) if said.type == "error" else None)
    page.on("request", lambda one: None if one.url.startswith(("file:", "data:", "blob:")) else wrong.append(one.url))
    page.goto(path.as_uri())
    page.wait_for_selector("body[data-drawn=yes]", timeout=1_800_000)
    return page, wrong


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1200, 400])
def test_it_draws_and_fits_the_screen(browser: Any, tmp_path: Path, scheme: str, width: int) -> None:
    view = {"width": width, "height": 800}
    page, wrong = opened(
        browser, tmp_path / "p.html", page_text(pipeline(), RUN, LOG), color_scheme=scheme, viewport=view
    )
    assert page.locator("canvas").count() >= 8
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    ground = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (ground == "rgb(255, 255, 255)") == (scheme == "light")
    assert wrong == []


def test_keys_unfold_blocks_and_zoom(browser: Any, tmp_path: Path) -> None:
    page, wrong = opened(browser, tmp_path / "p.html", page_text(pipeline()))
    block = page.locator("details[data-ops]").first
    assert block.locator("table").count() == 0
    block.locator("summary").focus()
    page.keyboard.press("Enter")
    block.locator("table").wait_for()
    before = page.evaluate(SPAN)
    page.locator("button[data-zoom=in]").focus()
    page.keyboard.press("Enter")
    assert page.evaluate(SPAN) == pytest.approx(before / 2)
    page.locator("button[data-zoom=all]").click()
    assert page.evaluate(SPAN) == pytest.approx(before)
    assert wrong == []


def test_hostile_names_do_no_harm(browser: Any, tmp_path: Path) -> None:
    page, wrong = opened(browser, tmp_path / "p.html", page_text(hostile(EVIL + "x" * 10_000)))
    for folded in page.locator("details").all():
        folded.locator("summary").first.click()
    for drawn in page.locator(".bk-events").all():
        drawn.hover()  # tooltips
    assert page.evaluate("window.hit") is None
    assert page.locator("img").count() == 0
    assert wrong == []
