"""Kubernetes files under the published schemas, unknown fields refused: JobSet and TrainJob by the models of Kubeflow's
trainer, PyTorchJob by those of its training operator, jobs and pods by the OpenAPI of Kubernetes.

A field too many anywhere in a file is refused too: so the schemas are seen to look at all of it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from copy import deepcopy
from dataclasses import replace
from importlib import import_module
from typing import Any

import pytest
import yaml
from launched_plans import ALIKE, ASKED, UNLIKE

from placer.targets.launchers.launch import launch_files

ALL = replace(ASKED, volume="data:/placer", queue="team", restarts=3)
KUBERNETES = "1.33"
# Maps whose keys anybody may choose.
FREE = {"labels", "limits", "resourcesPerNode"}
Document = dict[str, Any]


def documents(launcher: str) -> list[Document]:
    """What is written of nodes that are alike, with all options and with none, and where it can be of unlike ones."""
    asked = [(ALIKE, ASKED), (ALIKE, ALL), *([(UNLIKE, ALL)] if launcher == "jobset" else [])]
    return [yaml.safe_load(text) for plan, own in asked for text in launch_files(plan, launcher, own).values()]


def places(document: object, path: tuple[object, ...] = ()) -> Iterator[tuple[object, ...]]:
    """Where the mappings of a document are that have fields of a schema."""
    if isinstance(document, dict) and (not path or path[-1] not in FREE):
        yield path
    inner = (
        document.items() if isinstance(document, dict) else enumerate(document) if isinstance(document, list) else ()
    )
    for key, value in inner:
        yield from places(value, (*path, key))


def with_surplus(document: Document, path: tuple[object, ...]) -> Document:
    """The document with a field too many there."""
    changed = deepcopy(document)
    at: Any = changed
    for key in path:
        at = at[key]
    at["surplus"] = "x"
    return changed


def require_strict(document: Document, accepts: Callable[[Document], bool]) -> None:
    """A schema accepts the document, and refuses it with a field too many wherever there may be one."""
    assert accepts(document)
    every = [path for path in places(document) if not {*path[:-1]} & FREE]
    assert len(every) > 4
    for path in every:
        assert not accepts(with_surplus(document, path)), path


@pytest.mark.in_turns
@pytest.mark.parametrize(("launcher", "model"), [
    ("kubeflow", "TrainerV1alpha1TrainJob"), ("jobset", "JobsetV1alpha2JobSet"),
])  # fmt: skip
def test_jobs_of_the_trainer_by_its_own_models(launcher: str, model: str) -> None:
    models = pytest.importorskip("kubeflow_trainer_api.models", reason="kubeflow_trainer_api is not installed")
    pydantic = pytest.importorskip("pydantic")

    def accepts(document: Document) -> bool:
        try:  # what its models do not know they drop
            return bool(getattr(models, model).from_dict(document).to_dict() == document)
        except pydantic.ValidationError:
            return False

    for document in documents(launcher):
        require_strict(document, accepts)


def test_jobs_and_pods_by_the_schemas_of_kubernetes() -> None:
    kubernetes = pytest.importorskip("kubernetes_validate", reason="kubernetes-validate is not installed")

    def accepts(document: Document) -> bool:
        try:
            kubernetes.validate(document, KUBERNETES, strict=True)
        except kubernetes.ValidationError:
            return False
        return True

    for document in documents("jobset"):
        for job in document["spec"]["replicatedJobs"]:
            named = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": job["name"]}}
            require_strict({**named, **job["template"]}, accepts)
    for document in documents("pytorchjob"):
        for role in document["spec"]["pytorchReplicaSpecs"].values():
            pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "one"}}
            require_strict({**pod, **role["template"]}, accepts)


def test_jobs_of_the_training_operator_by_its_own_models() -> None:
    pytest.importorskip("kubeflow.training.models", reason="kubeflow-training is not installed")
    for document in documents("pytorchjob"):
        require_strict(document, lambda one: knows("KubeflowOrgV1PyTorchJob", one))


def knows(kind: str, value: object) -> bool:
    """Whether a value is of a type as the generated models name it, every field of it one that they list."""
    inner = re.fullmatch(r"(list\[|dict\(str, )(.*)[\])]", kind)
    if inner is not None:
        form, every = (list, value) if kind.startswith("list") else (dict, getattr(value, "values", list)())
        return isinstance(value, form) and all(knows(inner[2], each) for each in every)  # type: ignore[union-attr]
    plain = {"str": str, "int": int, "bool": bool}.get(kind)
    if plain is not None:
        return type(value) is plain
    rooms = ("kubeflow.training.models", "kubernetes.client.models")
    model = next(getattr(import_module(room), kind) for room in rooms if hasattr(import_module(room), kind))
    fields = {model.attribute_map[name]: own for name, own in model.openapi_types.items()}
    return isinstance(value, dict) and all(key in fields and knows(fields[key], each) for key, each in value.items())
