"""A spoilt file is made of a seed by its number, then read as placer's commands read it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from typing import Literal, get_args

from pydantic import JsonValue, TypeAdapter

from examples.parity.fuzz.checkpoints import read_checkpoint, spoiled_files
from examples.parity.fuzz.rules import wrong_cluster, wrong_numbers, wrong_plan
from examples.parity.fuzz.seeds import Seed
from examples.parity.fuzz.texts import spoiled_bytes
from examples.parity.fuzz.trees import spoiled
from examples.parity.fuzz.verdicts import Verdict, judged
from placer import tracer
from placer.cli.options import load_plan
from placer.cluster.cluster import Cluster
from placer.errors import IllegalPlanError
from placer.io.model_config import require_buildable
from placer.legality import check
from placer.plans.plan import PLAN
from placer.report.documents import plan_document
from placer.report.plan_table import plan_view
from placer.report.printing import show

Kind = Literal["plan", "cluster", "config", "checkpoint"]
KINDS: tuple[Kind, ...] = get_args(Kind)
CLUSTER: TypeAdapter[Cluster] = TypeAdapter(Cluster)
# Of ten files how many are spoilt by somebody who knows what they say; of the others only the bytes are.
KNOWING = 0.8
# Of so many plans one is shown as text too, which takes as long as all else.
SHOWN = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """The spoilt file `number` of a kind, from the seed of a run."""

    kind: Kind
    seed: int
    number: int

    def random(self) -> Random:
        """What draws everything of it."""
        return Random(f"{self.seed} {self.kind} {self.number}")


def files(case: Case, seeds: tuple[Seed, ...]) -> dict[str, bytes]:
    """The spoilt file, by its name, or files."""
    random = case.random()
    seed = random.choice(seeds)
    if case.kind == "checkpoint":
        return spoiled_files(seed, random)
    ((name, content),) = seed.files.items()
    if random.random() > KNOWING:
        return {name: spoiled_bytes(content, random)}
    tree = spoiled(seed.tree, random, random.choice((1, 1, 1, 2, 3)))
    return {name: json.dumps(tree, ensure_ascii=random.random() < 0.5).encode(errors="surrogatepass")}


def verdict(case: Case, seeds: tuple[Seed, ...], folder: Path) -> Verdict:
    """Write the files into `folder`, where nothing else lies, and read them."""
    made = files(case, seeds)
    if case.kind == "checkpoint":
        shutil.rmtree(folder, ignore_errors=True)
    for name, content in made.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    if case.kind == "checkpoint":
        return judged(lambda: read_checkpoint(folder))
    if case.kind == "plan":
        return judged(lambda: read_plan(path, shown=case.number % SHOWN == 0))
    return judged(lambda: (read_cluster if case.kind == "cluster" else read_config)(path))


def read_plan(path: Path, *, shown: bool) -> Iterator[str]:
    """As `placer explain` does, with the rules that it breaks; those that break none are held to ours."""
    plan = load_plan(path, None, illegal=True)
    broken = check(plan)
    told = replace(plan, ledger=None) if broken else plan
    json.dumps(plan_document(told))
    if shown:
        show(plan_view(told))
    if broken:
        raise IllegalPlanError(str(broken[0]))
    yield from wrong_plan(PLAN.dump_python(plan))


def read_cluster(path: Path) -> Iterator[str]:
    """As every command does that takes a cluster."""
    yield from wrong_cluster(CLUSTER.dump_python(Cluster.load(str(path))))


def read_config(path: Path) -> Iterator[str]:
    """As `placer plan` does: the model is built without weights."""
    require_buildable(str(path))
    model = tracer.resolve(str(path)).build("meta")
    described: JsonValue = json.loads(path.read_bytes())
    assert isinstance(described, dict)
    yield from wrong_numbers({name: described[name] for name in described if name in COUNTS})
    if sum(parameter.numel() for parameter in model.parameters()) >= 2**63:
        yield "the model has more parameters than 63 bits count"


COUNTS = frozenset({
    "vocab_size", "n_positions", "n_embd", "n_layer", "n_head", "hidden_size", "intermediate_size", "num_hidden_layers",
    "num_attention_heads", "num_key_value_heads", "max_position_embeddings", "image_size", "patch_size", "num_channels",
})  # fmt: skip
