"""Where the code of a file looks at values and does nothing by them but raise, or tell people of them.

    if x.max() >= classes:                  assert not torch.isnan(x).any()         if loss > 100:
        raise ValueError(...)                                                           print("large", loss)

Each is known by where it stands, with the truth by which nothing happens.
"""

from __future__ import annotations

import ast
import functools
import linecache
import re
from collections.abc import Iterator, Mapping
from types import CodeType
from typing import NamedTuple, TypeAlias

# First and last line, first and last column.
Place: TypeAlias = tuple[int | None, int | None, int | None, int | None]

# What is raised of values. (Others mean something to Python: StopIteration ends a loop.)
ERRORS = frozenset({
    "ValueError", "RuntimeError", "AssertionError", "TypeError", "ArithmeticError", "FloatingPointError",
    "OverflowError", "Exception",
})  # fmt: skip
# What tells people of values, or stops for them.
_TELLING = re.compile(
    r"print|breakpoint|exit|quit|warn|warnings\.warn|(i?pdb\.)?set_trace|sys\.exit|"
    r"((self\.)?_?(logger|log)|logging|LOGGER|LOG)\.(debug|info|warning|warn|error|exception|critical)"
)
# How transformers bounds what is not finite; nothing else hangs on it.
_BOUNDED = re.compile(
    r"if not torch\.isfinite\((\w+)\)\.all\(\):\n    clamp_value = torch\.finfo\(\1\.dtype\)\.max - 1000\n"
    r"    \1 = torch\.clamp\(\1, min=-clamp_value, max=clamp_value\)"
)
_LINE = re.compile(r"(?P<file>.+?):(?P<line>\d+) \(")


class Check(NamedTuple):
    """truth: by which nothing happens. raises: whether an error does otherwise, else people are told."""

    truth: bool
    raises: bool


@functools.lru_cache(maxsize=64)
def checks(filename: str) -> Mapping[Place, Check]:
    """What each expression of a file that a check asks for its truth is to say, by where it stands.

    Where Python says of a jump only the statement that it is of, all that the statement asks must pass alike.
    """
    found: dict[Place, Check] = {}
    for one in ast.walk(_parsed(filename)):
        asked = {_place(leaf): check for leaf, check in _asked(one)}
        found.update(asked)
        if isinstance(one, ast.stmt) and len(set(asked.values())) == 1:
            found[_place(one)] = next(iter(asked.values()))
    return found


@functools.lru_cache(maxsize=64)
def called_checks(filename: str) -> Mapping[Place, Check]:
    """Of these the calls of `bool`."""
    asked = [found for one in ast.walk(_parsed(filename)) for found in _asked(one)]
    return {_place(leaf): check for leaf, check in asked if isinstance(leaf, ast.Call) and _is_bool(leaf)}


@functools.lru_cache(maxsize=64)
def bounds(filename: str) -> Mapping[Place, str]:
    """The names of what a file bounds where it is not finite, by where that is asked."""
    found: dict[Place, str] = {}
    for one in ast.walk(_parsed(filename)):
        named = _BOUNDED.fullmatch(ast.unparse(one)) if isinstance(one, ast.If) else None
        if isinstance(one, ast.If) and named is not None:
            places = (_place(one), *(_place(leaf) for leaf, _ in _leaves(one.test, True)))
            found.update(dict.fromkeys(places, named[1]))
    return found


@functools.lru_cache(maxsize=64)
def catching(filename: str, of_a_library: bool) -> tuple[range, ...] | None:
    """The lines of a file from which an error may not reach the caller; None where its lines are not known.

    A library's handlers that end by raising only say more of it, and its contexts let errors pass, as torch's do.
    """
    if not linecache.getlines(filename):
        return None
    found = [one for one in ast.walk(_parsed(filename)) if _may_catch(one, of_a_library)]
    kept = [one for one in found if isinstance(one, ast.Try | ast.TryStar | ast.With)]
    return tuple(range(one.body[0].lineno, (one.body[-1].end_lineno or 0) + 1) for one in kept)


def _may_catch(one: ast.AST, of_a_library: bool) -> bool:
    if isinstance(one, ast.With):
        return not of_a_library and not all(ast.unparse(item.context_expr).startswith("torch.") for item in one.items)
    if not isinstance(one, ast.Try | ast.TryStar):
        return False
    return not of_a_library or not all(isinstance(handler.body[-1], ast.Raise) for handler in one.handlers)


@functools.lru_cache(maxsize=256)
def is_what_runs(code: CodeType) -> bool:
    """Whether the file that a code is said to be of has just this code."""
    return code in _codes(code.co_filename)


@functools.lru_cache(maxsize=64)
def _codes(filename: str) -> frozenset[CodeType]:
    text = "".join(linecache.getlines(filename))
    try:
        pending, found = [compile(text, filename, "exec", dont_inherit=True)], set[CodeType]()
    except (SyntaxError, ValueError):
        return frozenset()
    while pending:
        one = pending.pop()
        found.add(one)
        pending.extend(part for part in one.co_consts if isinstance(part, CodeType))
    return frozenset(found)


def only_checks(where: str) -> bool:
    """Whether what is asked at `file:line (code)` does nothing but raise, whoever may catch that."""
    found = _LINE.match(where)
    return found is not None and any(
        one.lineno <= int(found["line"]) <= (one.test.end_lineno or 0)
        for one in ast.walk(_parsed(found["file"]))
        if isinstance(one, ast.Assert) or (isinstance(one, ast.If) and _raises_alone(one))
    )


def _raises_alone(one: ast.If) -> bool:
    return not one.orelse and len(one.body) == 1 and isinstance(one.body[0], ast.Raise)


def _parsed(filename: str) -> ast.Module:
    try:
        return ast.parse("".join(linecache.getlines(filename)))
    except (SyntaxError, ValueError):
        return ast.Module(body=[], type_ignores=[])


def _asked(one: ast.AST) -> Iterator[tuple[ast.expr, Check]]:
    """What a statement that checks asks for its truth, and the truth with which it does nothing."""
    if isinstance(one, ast.Assert):
        yield from ((leaf, Check(truth, raises=True)) for leaf, truth in _leaves(one.test, True))
    elif isinstance(one, ast.If) and not one.orelse and _only_tells(one.body):
        raises = isinstance(one.body[-1], ast.Raise)
        yield from ((leaf, Check(truth, raises)) for leaf, truth in _leaves(one.test, False))


def _only_tells(body: list[ast.stmt]) -> bool:
    """Whether statements tell people of something, and raise at the end, or not."""
    *before, last = body
    inner = (one for statement in body for one in ast.walk(statement))
    return (
        all(map(_tells, before))
        and (_tells(last) or _names_error(last))
        and not any(isinstance(one, ast.NamedExpr | ast.Await | ast.Yield | ast.YieldFrom) for one in inner)
    )


def _tells(one: ast.stmt) -> bool:
    if isinstance(one, ast.Expr) and isinstance(one.value, ast.Call):
        return bool(_TELLING.fullmatch(ast.unparse(one.value.func)))
    return isinstance(one, ast.Import)


def _names_error(one: ast.stmt) -> bool:
    """Whether a statement raises one of ERRORS."""
    raised = one.exc if isinstance(one, ast.Raise) else None
    named = raised.func if isinstance(raised, ast.Call) else raised
    return isinstance(named, ast.Name) and named.id in ERRORS


def _leaves(test: ast.expr, wanted: bool) -> Iterator[tuple[ast.expr, bool]]:
    if isinstance(test, ast.BoolOp):
        for part in test.values:
            yield from _leaves(part, wanted)
    elif isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        yield from _leaves(test.operand, not wanted)
    elif not (isinstance(test, ast.Compare) and isinstance(test.ops[0], (ast.Is, ast.IsNot, ast.In, ast.NotIn))):
        yield test, wanted


def _is_bool(call: ast.Call) -> bool:
    return isinstance(call.func, ast.Name) and call.func.id == "bool"


def _place(one: ast.expr | ast.stmt) -> Place:
    return one.lineno, one.end_lineno, one.col_offset, one.end_col_offset
