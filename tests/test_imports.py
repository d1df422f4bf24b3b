"""Who may import whom, read from the syntax trees: imports point at values, never back."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent

# A room may import any room that stands before it, and those on its own line only if they stand before it there.
# A package (tracer, report, ...) is one room; inside it everything may import everything.
LINES = """
errors extras usercode references near_names
files units
budgets
placement
graph cluster settings ledger
topology efficiency numerics yaml_lines hardware_data cluster_schema cluster_yaml catalogue
schedule alive plans
fingerprint
rules
splitting
meshes
bucketing
tiles attention masks held backwards spans
fusion compute collectives mixed channels exchanges communication profiles gathers
updates passes offload
memory steptime
program
tails
costs
estimates
legality
timeline simulator
search pins
moving
report doctor
api
cli
"""
ORDER = LINES.split()

# Rooms beside that order, and what each may import.
# cli may import every room but demo, runtime and calibrate, which it reaches inside the command that needs them.
BESIDE = {
    "strategies": ORDER[: ORDER.index("search") + 1],
    "runtime": [*ORDER[: ORDER.index("meshes") + 1], "program", "legality", "tracer"],
    "tracer": ORDER[: ORDER.index("rules") + 1],
    "doctor": [*ORDER[: ORDER.index("doctor")], "calibrate"],
    "demo": [*ORDER[: ORDER.index("cli")], "tracer", "runtime"],
    "calibrate": [*ORDER[: ORDER.index("rules") + 1], "collectives"],
}

# Imports inside a function that point back on purpose: a value opens the door to the room that makes or prints it.
DOORS = {
    ("cluster", "catalogue"): "Cluster.load reads what the catalogue can find",
    ("catalogue", "calibrate"): "`local` is measured when it is asked for",
    ("plans", "report"): "print(plan) shows the table",
    ("api", "tracer"): "capture needs torch, reading a plan does not",
    ("search", "estimates"): "the judge of a solution estimates it afresh",
    ("search", "legality"): "the judge of a solution checks it afresh",
    ("cli", "runtime"): "execute and verify run plans, bench races them, explain shows what their ranks run",
    ("cli", "calibrate"): "calibrate measures this machine",
    ("cli", "demo"): "the demo runs its plan, which needs torch",
}
RUNTIME_COMMANDS = {
    f"placer/cli/{name}.py" for name in ("bench", "dry_run", "execute", "explain", "replan", "verify", "weights")
}

# library -> rooms that may import it at the top of a file; elsewhere only inside the function that needs it.
HEAVY = {
    "torch": {"tracer", "runtime", "calibrate", "demo"},
    "transformers": {"tracer", "runtime", "demo"},
    "ortools": {"strategies"},
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Import:
    """One import statement: which file, which module it names, whether it stands at the top of the file."""

    file: str
    room: str
    module: str
    line: int
    top: bool
    typing_only: bool


def python_files() -> list[Path]:
    folders = [ROOT / "placer", ROOT / "strategies", ROOT / "runtime"]
    found = {path.resolve() for folder in folders for path in folder.rglob("*.py")}
    return sorted(path for path in found if "__pycache__" not in path.parts)


def room_of(module: str) -> str:
    return module.split(".")[1] if "." in module else "placer"


def module_of(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    dotted = parts if parts[0] == "placer" else ("placer", *parts)
    return ".".join(dotted).removesuffix(".__init__")


def imports_of(path: Path) -> Iterator[Import]:
    module = module_of(path)
    for node, top, typing_only in _statements(ast.parse(path.read_text()), top=True, typing_only=False):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else _from(node, module, path)
        for name in names:
            yield Import(
                file=str(path.relative_to(ROOT)),
                room=room_of(module),
                module=name,
                line=node.lineno,
                top=top,
                typing_only=typing_only,
            )


def _from(node: ast.ImportFrom, module: str, path: Path) -> list[str]:
    base = node.module or ""
    if node.level:
        package = module if path.name == "__init__.py" else module.rpartition(".")[0]
        for _ in range(node.level - 1):
            package = package.rpartition(".")[0]
        base = f"{package}.{base}".rstrip(".")
    if base == "placer":  # `from placer import costs` names a room
        return [f"placer.{alias.name}" for alias in node.names]
    return [base]


def _statements(
    tree: ast.AST, *, top: bool, typing_only: bool
) -> Iterator[tuple[ast.Import | ast.ImportFrom, bool, bool]]:
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            yield node, top, typing_only
            continue
        inside = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        guard = isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test)
        yield from _statements(node, top=top and not inside, typing_only=typing_only or guard)


EVERY = [entry for path in python_files() for entry in imports_of(path)]
INSIDE = [entry for entry in EVERY if entry.module.startswith("placer.") and entry.room not in ("placer", "__main__")]


def allowed(entry: Import) -> bool:
    target = room_of(entry.module)
    if target == entry.room or entry.typing_only:
        return True
    if not entry.top and (entry.room, target) in DOORS:
        return True
    before = BESIDE[entry.room] if entry.room in BESIDE else ORDER[: ORDER.index(entry.room)]
    return target in before


def test_every_room_has_its_place() -> None:
    rooms = {room_of(module_of(path)) for path in python_files()} - {"placer", "__main__"}
    assert rooms <= {*ORDER, *BESIDE}, f"give a place in ORDER to {sorted(rooms - {*ORDER, *BESIDE})}"


def test_imports_point_at_values() -> None:
    wrong = [f"{entry.file}:{entry.line} imports {entry.module}" for entry in INSIDE if not allowed(entry)]
    assert not wrong, "\n".join(wrong)


def test_strategies_and_runtime_never_import_each_other() -> None:
    pairs = {(entry.room, room_of(entry.module)) for entry in INSIDE}
    assert not pairs & {("strategies", "runtime"), ("runtime", "strategies")}


def test_the_command_line_reaches_the_runtime_only_in_execute_and_verify() -> None:
    files = {entry.file for entry in INSIDE if entry.room == "cli" and room_of(entry.module) == "runtime"}
    assert files <= RUNTIME_COMMANDS


@pytest.mark.parametrize("library", sorted(HEAVY))
def test_a_heavy_library_stands_at_the_top_only_where_it_is_wrapped(library: str) -> None:
    wrong = [
        f"{entry.file}:{entry.line}"
        for entry in EVERY
        if entry.module.split(".")[0] == library
        and entry.top
        and not entry.typing_only
        and entry.room not in HEAVY[library]
    ]
    assert not wrong, wrong


def test_no_module_bears_the_name_of_a_public_function() -> None:
    functions = {"capture", "plan", "estimate", "simulate"}
    rooms = {room_of(module_of(path)) for path in python_files()}
    assert not functions & rooms


def test_the_reader_of_syntax_trees_sees_an_import_that_points_back() -> None:
    backwards = Import(file="x", room="graph", module="placer.costs", line=1, top=True, typing_only=False)
    assert not allowed(backwards)
    assert any(entry.room == "plans" and entry.module == "placer.graph" for entry in INSIDE)
