"""The line of progress: on terminals only, late enough, taken back at the end."""

from __future__ import annotations

import io
import os

import pytest

from placer.io.terminal import LINE_AGAIN
from placer.search import progress_line as module
from placer.search.judge import solve_with
from placer.search.progress_line import BETWEEN, PATIENCE, ProgressLine, progress_line, tell
from problems import random_problem


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_nothing_is_shown_before_patience_ends_and_not_at_every_word() -> None:
    now, stream = 0.0, Terminal()
    line = ProgressLine(stream=stream, clock=lambda: now, until=10.0, phase="stages", best=1.5, bound=1.25)
    shown = []
    for now in (0.0, PATIENCE - 0.01, PATIENCE, PATIENCE + BETWEEN / 2, PATIENCE + BETWEEN):  # noqa: B007
        before = len(stream.getvalue())
        line.show()
        shown.append(len(stream.getvalue()) > before)
    assert shown == [False, False, True, False, True]
    assert "stages, best 1.5 s a step, bound of the rest 1.25 s, 2 s of search, 8 s left" in stream.getvalue()
    line.close()
    assert stream.getvalue().endswith(LINE_AGAIN)


def test_a_search_tells_its_best_and_a_bound_below_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PATIENCE", 0.0)
    monkeypatch.setattr(module, "BETWEEN", 0.0)
    stream = Terminal()
    with progress_line(stream=stream):
        solve_with(random_problem(0), "auto")
    lines = stream.getvalue().split(LINE_AGAIN)
    assert any("megatron" in line for line in lines) and any("stages, best" in line for line in lines)
    assert lines[-1] == ""


def test_a_pipe_gets_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PATIENCE", 0.0)
    stream = io.StringIO()
    with progress_line(stream=stream):
        tell(phase="stages", best=1.0)
    assert stream.getvalue() == ""


def test_a_forked_process_says_nothing_and_an_error_takes_the_line_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PATIENCE", 0.0)
    stream = Terminal()
    with pytest.raises(KeyboardInterrupt), progress_line(stream=stream):
        monkeypatch.setattr(os, "getpid", lambda: 0)
        tell(phase="elsewhere")
        monkeypatch.undo()
        monkeypatch.setattr(module, "PATIENCE", 0.0)
        tell(phase="here")
        raise KeyboardInterrupt
    assert "elsewhere" not in stream.getvalue() and "here" in stream.getvalue()
    assert stream.getvalue().endswith(LINE_AGAIN)
