"""Kubernetes: Kubeflow Trainer v2 (TrainJob), JobSet v1alpha2, and PyTorchJob of the older training operator.

TrainJob and PyTorchJob know one class of nodes, and torchrun there takes everything from PET_ variables. A JobSet has a
replicated job for each class, each with the offset of its node ranks; its first pod is `NAME-GROUP-0-0.NAME`.
"""

from __future__ import annotations

import yaml

from placer.targets.launchers.asked import PORT, LaunchAsked, torchrun
from placer.targets.launchers.hosts import HostGroup
from placer.targets.launchers.scripts import Groups, alike

GPU = "nvidia.com/gpu"
QUEUE = "kueue.x-k8s.io/queue-name"
Object = dict[str, object]


def kubeflow_files(groups: Groups, asked: LaunchAsked) -> dict[str, str]:
    """`trainjob.yaml`: for `kubectl apply -f`, on a cluster whose runtime `torch-distributed` is installed."""
    group = alike(groups, "a TrainJob", "jobset")
    trainer: Object = {
        "image": asked.container_image("Kubeflow"),
        "numNodes": group.count,
        "numProcPerNode": group.ranks,
        "command": ["torchrun", "--no-python", *asked.execute],
        **({"resourcesPerNode": _resources(group)} if group.accelerators else {}),
    }
    spec: Object = {"runtimeRef": {"name": "torch-distributed"}, "trainer": trainer}
    if asked.mount() is not None:
        pod: Object = {"volumes": _volumes(asked), "containers": [{"name": "node", "volumeMounts": _mounts(asked)}]}
        spec["runtimePatches"] = [
            {
                "manager": "placer.dev/launch",
                "trainingRuntimeSpec": {
                    "template": {"spec": {"replicatedJobs": [
                        {"name": "node", "template": {"spec": {"template": {"spec": pod}}}}
                    ]}}
                },
            }
        ]  # fmt: skip
    return _file("trainjob.yaml", "trainer.kubeflow.org/v1alpha1", "TrainJob", asked, spec)


def jobset_files(groups: Groups, asked: LaunchAsked) -> dict[str, str]:
    """`jobset.yaml`: for `kubectl apply -f`; unlike nodes as a replicated job each."""
    names = [f"nodes{number}" for number in range(len(groups))]
    nodes = sum(group.count for group in groups)
    head = f"{asked.name}-{names[0]}-0-0.{asked.name}"
    jobs = [
        {
            "name": name,
            "replicas": 1,
            "template": {
                "spec": {
                    "completionMode": "Indexed",
                    "parallelism": group.count,
                    "completions": group.count,
                    "backoffLimit": 0,
                    "template": {"spec": _pod(group, asked, nodes, head)},
                }
            },
        }
        for name, group in zip(names, groups, strict=True)
    ]
    spec = {"failurePolicy": {"maxRestarts": asked.restarts}, "replicatedJobs": jobs}
    return _file("jobset.yaml", "jobset.x-k8s.io/v1alpha2", "JobSet", asked, spec)


def pytorchjob_files(groups: Groups, asked: LaunchAsked) -> dict[str, str]:
    """`pytorchjob.yaml`: for `kubectl apply -f`, on a cluster with the older training operator."""
    group = alike(groups, "a PyTorchJob", "jobset")
    container: Object = {
        "name": "pytorch",
        "image": asked.container_image("a PyTorchJob"),
        "command": ["torchrun", "--no-python", *asked.execute],
        **({"resources": _resources(group)} if group.accelerators else {}),
        **({"volumeMounts": _mounts(asked)} if asked.volume else {}),
    }
    pod: Object = {"containers": [container], **({"volumes": _volumes(asked)} if asked.volume else {})}
    roles = {"Master": 1, "Worker": group.count - 1}
    replicas = {
        role: {"replicas": count, "restartPolicy": "OnFailure" if asked.restarts else "Never",
               "template": {"spec": pod}}
        for role, count in roles.items()
        if count
    }  # fmt: skip
    spec: Object = {"nprocPerNode": str(group.ranks), "pytorchReplicaSpecs": replicas}
    if asked.restarts:
        spec["runPolicy"] = {"backoffLimit": asked.restarts}
    return _file("pytorchjob.yaml", "kubeflow.org/v1", "PyTorchJob", asked, spec)


def _pod(group: HostGroup, asked: LaunchAsked, nodes: int, head: str) -> Object:
    """A pod that is one node of the run."""
    rank = f"$(({group.first} + JOB_COMPLETION_INDEX))"
    command = torchrun(str(nodes), str(group.ranks), rank, head, str(PORT), asked.execute)
    container: Object = {
        "name": "node",
        "image": asked.container_image("a JobSet"),
        "command": ["bash", "-c", f"exec {command}"],
        **({"resources": _resources(group)} if group.accelerators else {}),
        **({"volumeMounts": _mounts(asked)} if asked.volume else {}),
    }
    volumes = {"volumes": _volumes(asked)} if asked.volume else {}
    return {"restartPolicy": "Never", "containers": [container], **volumes}


def _resources(group: HostGroup) -> Object:
    return {"limits": {GPU: str(group.ranks)}}


def _volumes(asked: LaunchAsked) -> list[Object]:
    found = asked.mount()
    return [{"name": "placer", "persistentVolumeClaim": {"claimName": found[0]}}] if found else []


def _mounts(asked: LaunchAsked) -> list[Object]:
    found = asked.mount()
    return [{"name": "placer", "mountPath": found[1]}] if found else []


def _file(name: str, version: str, kind: str, asked: LaunchAsked, spec: object) -> dict[str, str]:
    labels = {"labels": {QUEUE: asked.queue}} if asked.queue else {}
    document = {"apiVersion": version, "kind": kind, "metadata": {"name": asked.name, **labels}, "spec": spec}
    return {name: yaml.dump(document, Dumper=_Plain, sort_keys=False)}


class _Plain(yaml.SafeDumper):
    """Repeats what occurs twice instead of pointing at it."""

    def ignore_aliases(self, _data: object) -> bool:
        return True
