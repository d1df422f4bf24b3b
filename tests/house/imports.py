"""Who imports whom, read from the syntax trees: the files of placer, what each names, and the longest chain of imports.

python tests/house/imports.py [CHECKOUT]     entries of the fullest folder, and the longest chain
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("placer", "strategies", "runtime")


@dataclass(frozen=True, slots=True, kw_only=True)
class Import:
    """One imported module: by which one, in which line, whether at the top of the file or within a function."""

    importer: str
    module: str
    line: int
    top: bool


def modules(root: Path = ROOT) -> dict[str, Path]:
    """Every module of the three folders by its dotted name; a package is its __init__.py."""
    return {
        module_name(path.relative_to(root)): path
        for folder in FOLDERS
        for path in sorted((root / folder).rglob("*.py"))
        if not any(parent.is_symlink() for parent in path.parents)
    }


def module_name(path: Path) -> str:
    """`placer.runtime.dry` of runtime/dry/__init__.py."""
    parts = path.with_suffix("").parts
    dotted = parts if parts[0] == "placer" else ("placer", *parts)
    return ".".join(dotted).removesuffix(".__init__")


@cache
def imports(root: Path = ROOT) -> tuple[Import, ...]:
    """Every import of the three folders that is more than a type's."""
    known = modules(root)
    return tuple(
        Import(importer=module, module=name, line=node.lineno, top=top)
        for module, path in known.items()
        for node, top in _statements(ast.parse(path.read_text()), top=True)
        for name in _imported(node, known)
    )


@cache
def internal(root: Path = ROOT) -> tuple[Import, ...]:
    """Those that name a module of placer."""
    known = modules(root)
    return tuple(entry for entry in imports(root) if entry.module in known)


def longest_chain(root: Path = ROOT) -> tuple[str, ...]:
    """The longest row of modules each of which imports the next at its top."""
    after: dict[str, set[str]] = {}
    for entry in internal(root):
        if entry.top and entry.module != entry.importer:
            after.setdefault(entry.importer, set()).add(entry.module)

    @cache
    def chain(module: str) -> tuple[str, ...]:
        return (module, *max((chain(name) for name in sorted(after.get(module, ()))), key=len, default=()))

    return max((chain(module) for module in sorted(after)), key=len)


def folder_sizes(root: Path = ROOT) -> dict[Path, int]:
    """How many files and folders lie in each folder that holds code; links, pages and the marker of types are none."""
    folders = {path.parent for top in (*FOLDERS, "tests", "examples") for path in (root / top).rglob("*.py")}
    return {
        folder.relative_to(root): sum(
            not entry.is_symlink() and entry.name not in ("__pycache__", "py.typed", "README.md")
            for entry in folder.iterdir()
        )
        for folder in sorted(folders)
        if not any(parent.is_symlink() for parent in (folder, *folder.parents))
    }


def _imported(node: ast.Import | ast.ImportFrom, known: dict[str, Path]) -> list[str]:
    """The modules an import statement names; `from placer.program import lower` names the face of program."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    base = node.module or ""
    names = [f"{base}.{alias.name}" for alias in node.names]
    return sorted({name if name in known else base for name in names})


def _statements(tree: ast.AST, *, top: bool) -> Iterator[tuple[ast.Import | ast.ImportFrom, bool]]:
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            yield node, top
        elif isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
            continue
        else:
            inside = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
            yield from _statements(node, top=top and not inside)


def main(checkout: Path) -> None:
    """Print what a stranger would count."""
    sizes, chain = folder_sizes(checkout), longest_chain(checkout)
    fullest = max(sizes, key=lambda folder: sizes[folder])
    print(f"the fullest of {len(sizes)} folders, {fullest}, has {sizes[fullest]} entries")
    print(f"the longest chain of imports has {len(chain)} modules:", *chain, sep="\n  ")


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve() if len(sys.argv) > 1 else ROOT)
