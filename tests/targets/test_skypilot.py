"""SkyPilot's files under its own schema, which refuses unknown fields, and read by its own Task."""

from __future__ import annotations

from dataclasses import replace
from importlib import import_module
from pathlib import Path

import jsonschema
import pytest
import yaml
from launched_plans import ALIKE, ASKED

from placer.targets.launchers.launch import launch_files

schemas = pytest.importorskip("sky.utils.schemas", reason="skypilot is not installed", exc_type=ImportError)


@pytest.mark.parametrize("asked", [ASKED, replace(ASKED, image="", restarts=3)])
def test_its_schema_accepts_the_file_and_nothing_more(asked, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    (text,) = launch_files(ALIKE, "skypilot", asked).values()
    document = yaml.safe_load(text)
    whole, resources = schemas.get_task_schema(), schemas.get_resources_schema()
    jsonschema.validate(document, whole)
    jsonschema.validate(document["resources"], resources)
    with pytest.raises(jsonschema.ValidationError, match="surplus"):
        jsonschema.validate({**document, "surplus": "x"}, whole)
    with pytest.raises(jsonschema.ValidationError, match="surplus"):
        jsonschema.validate({**document["resources"], "surplus": "x"}, resources)
    path = tmp_path / "task.yaml"
    path.write_text(text)
    task = import_module("sky").Task.from_yaml(str(path))
    (wanted,) = task.resources
    assert (task.num_nodes, wanted.accelerators) == (2, {"H100": 2})
