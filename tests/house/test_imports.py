"""Who may import whom: in every folder the entries are acyclic, and a few imports are never made."""

from __future__ import annotations

import sys
from pathlib import Path

import networkx as nx
import pytest

from imports import ROOT, Import, folder_sizes, imports, internal, longest_chain, module_name, modules

# Imports within a function that point back on purpose: a value opens the door to the room that makes or prints it.
DOORS = {
    ("placer.cluster.cluster", "placer.cluster.catalogue"): "Cluster.load reads what the catalogue can find",
    ("placer.plans.plan", "placer.report.plan_table"): "print(plan) shows the table",
    ("placer.plans.plan", "placer.report.notebook"): "a notebook shows it as HTML",
}

# Who may import a heavy library at the top of a file; elsewhere only inside the function that needs it.
HEAVY = {
    "torch": (
        "placer.tracer", "placer.runtime", "placer.cluster.calibrate", "placer.cli.commands.demo",
        "placer.strategies.policy",
    ),
    "transformers": ("placer.tracer", "placer.runtime", "placer.cli.commands.demo"),
    "ortools": ("placer.strategies",),
    "bokeh": ("placer.report.bench.parallel_page", "placer.report.page.charts", "placer.report.strategies.page"),
    "deap": ("placer.strategies.genetic.selection", "placer.strategies.placement.orders.genetic"),
    "pyarrow": ("placer.runtime.data.shards.formats.parquet",),
    "mpi4py": ("placer.runtime.distributed.mpi",),
    "matplotlib": ("placer.report.sweep_plot", "placer.report.strategies.plot"),
    "gymnasium": (
        "placer.strategies.policy.environment", "placer.strategies.policy.orders.environment",
        "placer.strategies.policy.ppo",
    ),
    "sb3_contrib": ("placer.strategies.policy.ppo",),
    "stable_baselines3": ("placer.strategies.policy.ppo",),
}  # fmt: skip

# Two rooms, of which the first never imports the second, not even inside a function.
NEVER = [
    ("placer.strategies", "placer.runtime"),
    ("placer.runtime", "placer.strategies"),
    ("placer.runtime", "placer.search"),
    ("placer.runtime", "placer.api"),
    ("placer.strategies", "placer.api"),
    ("placer.strategies", "placer.tracer"),
]


def within(module: str, room: str) -> bool:
    return module == room or module.startswith(f"{room}.")


def entry_of(module: str, folder: str) -> str:
    """Which entry of `folder` a module lies in; the folder's own face is one of its entries."""
    return module.removeprefix(folder).lstrip(".").split(".")[0] or "__init__"


def folders() -> list[str]:
    return sorted({name for name, path in modules().items() if path.name == "__init__.py"})


def circles(folder: str, among: tuple[Import, ...]) -> list[list[str]]:
    """Entries of `folder` that import each other."""
    pairs = {
        (entry_of(entry.importer, folder), entry_of(entry.module, folder))
        for entry in among
        if within(entry.importer, folder)
        and within(entry.module, folder)
        and (entry.top or (entry.importer, entry.module) not in DOORS)
    }
    graph = nx.DiGraph([(a, b) for a, b in pairs if a != b and not (folder == "placer" and "__init__" in (a, b))])
    return [sorted(circle) for circle in nx.strongly_connected_components(graph) if len(circle) > 1]


@pytest.mark.parametrize("folder", folders())
def test_the_entries_of_a_folder_are_acyclic(folder: str) -> None:
    assert not circles(folder, internal())


def test_a_planted_circle_is_seen() -> None:
    back = Import(importer="placer.graph", module="placer.costs.costs", line=1, top=False)
    (circle,) = circles("placer", (*internal(), back))
    assert {"costs", "graph"} <= set(circle)


def test_every_door_is_used() -> None:
    assert set(DOORS) <= {(entry.importer, entry.module) for entry in internal() if not entry.top}


@pytest.mark.parametrize(("room", "other"), NEVER)
def test_some_rooms_never_import_each_other(room: str, other: str) -> None:
    wrong = [entry for entry in internal() if within(entry.importer, room) and within(entry.module, other)]
    assert not wrong


def test_the_command_line_reaches_the_runtime_only_within_commands() -> None:
    reaching = [e for e in internal() if within(e.importer, "placer.cli") and within(e.module, "placer.runtime")]
    assert reaching
    assert not [entry for entry in reaching if not within(entry.importer, "placer.cli.commands")]
    # The story of the demo is itself imported within its command.
    assert not [entry for entry in reaching if entry.top and not within(entry.importer, "placer.cli.commands.demo")]


@pytest.mark.in_turns
@pytest.mark.parametrize("library", sorted(HEAVY))
def test_a_heavy_library_stands_at_the_top_only_where_it_is_wrapped(library: str) -> None:
    users = [entry for entry in imports() if entry.module.split(".")[0] == library and entry.top]
    assert users
    assert not [entry for entry in users if not any(within(entry.importer, room) for room in HEAVY[library])]


# What settings are and what their numbers may be: plain values.
JUDGE, PLAIN = "placer.runtime.verify.eager", {"placer.errors", "placer.io.bounds", "placer.plans.settings"}


def reached(module: str, among: tuple[Import, ...]) -> set[str]:
    """What a module imports, and what that does."""
    graph = nx.DiGraph([(entry.importer, entry.module) for entry in among])
    return set(nx.descendants(graph, module)) if module in graph else set()


def test_the_judge_shares_nothing_with_what_it_judges() -> None:
    own = {name for name in modules() if within(name, JUDGE)}
    assert len(own) > 3
    assert set().union(*(reached(name, internal()) for name in own)) - own <= PLAIN
    libraries = {entry.module.split(".")[0] for entry in imports() if entry.importer in own}
    assert libraries - set(sys.stdlib_module_names) <= {"torch", "placer"}


def test_a_planted_import_of_the_judge_is_seen() -> None:
    planted = Import(importer=f"{JUDGE}.run", module="placer.plans.plan", line=1, top=False)
    assert "placer.graph" in reached(f"{JUDGE}.run", (*internal(), planted))


def test_no_module_bears_the_name_of_a_public_function() -> None:
    names = {name.rpartition(".")[2] for name in modules() if name.count(".") == 1}
    assert not names & {"capture", "plan", "estimate", "simulate"}


def test_no_folder_holds_more_than_twenty_entries() -> None:
    assert {str(folder): size for folder, size in folder_sizes().items() if size > 20} == {}


def test_chains_of_imports_stay_short() -> None:
    chain = longest_chain()
    assert len(chain) <= 30, " -> ".join(chain)


def test_names_of_modules_are_those_python_gives_them() -> None:
    assert module_name(Path("runtime/dry/__init__.py")) == "placer.runtime.dry"
    assert modules()["placer.graph"] == ROOT / "placer" / "graph.py"
