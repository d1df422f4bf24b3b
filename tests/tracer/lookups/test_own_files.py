"""Files of a person's own, in whose code it is looked up what they do with numbers that forward reads."""

from __future__ import annotations

import ast
import importlib.util
import sys
from pathlib import Path

import pytest
from torch import nn

from placer.tracer.export.torchs_own import reading
from placer.tracer.lookups import checks_in_code
from placer.tracer.lookups.readings import Readings

MANY = 300


def own_modules(folder: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The files of so many modules that are imported and not installed."""
    files = [folder / f"own_part_{number}.py" for number in range(MANY)]
    for file in files:
        file.write_text("def half(x):\n    return float(x) / 2\n")
        spec = importlib.util.spec_from_file_location(file.stem, file)
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        monkeypatch.setitem(sys.modules, file.stem, module)
    return [str(file) for file in files]


def test_a_file_is_looked_through_once_however_many_there_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files, looked_through, before = own_modules(tmp_path, monkeypatch), list[str](), checks_in_code.parsed

    def parsed(filename: str) -> ast.Module:
        looked_through.append(filename)
        return before(filename)

    monkeypatch.setattr(reading, "parsed", parsed)
    for _ in range(2):
        with reading.numbers_read(reading.Reading(Readings()), nn.Linear(1, 1), None):
            kinds = [sys.modules[Path(file).stem].__dict__["float"] for file in files]
            assert all(kind is not float for kind in kinds)
    assert sorted(one for one in looked_through if one in files) == sorted(files)
