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

from placer.tracer.lookups.pure_code import is_pure

# First and last line, first and last column.
Place: TypeAlias = tuple[int | None, int | None, int | None, int | None]

# How transformers bounds what is not finite; nothing else hangs on it.
_BOUNDED = re.compile(
    r"if not torch\.isfinite\((\w+)\)\.all\(\):\n    clamp_value = torch\.finfo\(\1\.dtype\)\.max - 1000\n"
    r"    \1 = torch\.clamp\(\1, min=-clamp_value, max=clamp_value\)"
)
# Contexts of torch that let errors pass.
_PASSING = re.compile(
    r"torch\.(no_grad|enable_grad|set_grad_enabled|inference_mode|(cuda\.|cpu\.)?(amp\.)?autocast|"
    r"(autograd\.)?profiler\.record_function)\(.*\)",
    re.DOTALL,
)
_LINE = re.compile(r"(?P<file>.+?):(?P<line>\d+) \(")


class Check(NamedTuple):
    """truth: by which nothing happens. error: the name of what is raised otherwise, "" where people are told. calls:
    the names of what tells them."""

    truth: bool
    error: str
    calls: tuple[str, ...]


@functools.lru_cache(maxsize=64)
def checks(filename: str) -> Mapping[Place, Check]:
    """What each expression of a file that a check asks for its truth is to say, by where it stands.

    Where Python says of a jump only the statement that it is of, all that the statement asks must pass alike.
    """
    found: dict[Place, Check] = {}
    for one in ast.walk(parsed(filename)):
        asked = {_place(leaf): check for leaf, check in _asked(one)}
        found.update(asked)
        if isinstance(one, ast.stmt) and len(set(asked.values())) == 1:
            found[_place(one)] = next(iter(asked.values()))
    return found


@functools.lru_cache(maxsize=64)
def called_checks(filename: str) -> Mapping[Place, Check]:
    """Of these the calls of `bool`."""
    asked = [found for one in ast.walk(parsed(filename)) for found in _asked(one)]
    return {_place(leaf): check for leaf, check in asked if isinstance(leaf, ast.Call) and _is_bool(leaf)}


@functools.lru_cache(maxsize=64)
def tellings(filename: str) -> tuple[tuple[Place, str], ...]:
    """Where statements stand that tell people of something and do nothing else, and the names of what does it."""
    told = [one for one in ast.walk(parsed(filename)) if isinstance(one, ast.Expr) and _telling(one)]
    return tuple((_place(one), _telling(one)) for one in told)


def is_within(inner: Place, outer: Place) -> bool:
    """Whether what stands at one place is a part of what stands at another."""
    if None in inner or None in outer:
        return False
    first, last, begin, end = (part or 0 for part in inner)
    from_line, to_line, from_column, to_column = (part or 0 for part in outer)
    return (from_line, from_column) <= (first, begin) and (last, end) <= (to_line, to_column)


@functools.lru_cache(maxsize=64)
def bounds(filename: str) -> Mapping[Place, str]:
    """The names of what a file bounds where it is not finite, by where that is asked."""
    found: dict[Place, str] = {}
    for one in ast.walk(parsed(filename)):
        named = _BOUNDED.fullmatch(ast.unparse(one)) if isinstance(one, ast.If) else None
        if isinstance(one, ast.If) and named is not None:
            places = (_place(one), *(_place(leaf) for leaf, _ in _leaves(one.test, True)))
            found.update(dict.fromkeys(places, named[1]))
    return found


@functools.lru_cache(maxsize=64)
def catching(filename: str, of_a_library: bool, sure: bool = True) -> tuple[range, ...] | None:
    """The lines of a file from which an error may not reach the caller; None where its lines are not known.

    A library's handlers that end by raising only say more of it, and its contexts let errors pass, as torch's do; where
    it need not be sure that none ends there, those of others whose names do not say that they suppress some.
    """
    if not linecache.getlines(filename):
        return None
    found = [one for one in ast.walk(parsed(filename)) if _may_catch(one, of_a_library, sure)]
    kept = [one for one in found if isinstance(one, ast.Try | ast.TryStar | ast.With | ast.AsyncWith)]
    return tuple(range(one.body[0].lineno, (one.body[-1].end_lineno or 0) + 1) for one in kept)


def _may_catch(one: ast.AST, of_a_library: bool, sure: bool) -> bool:
    if isinstance(one, ast.With | ast.AsyncWith):
        contexts = [ast.unparse(item.context_expr) for item in one.items]
        if of_a_library or not sure:
            return not of_a_library and any("suppress" in text for text in contexts)
        return not all(map(_PASSING.fullmatch, contexts))
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
        for one in ast.walk(parsed(found["file"]))
        if isinstance(one, ast.Assert) or (isinstance(one, ast.If) and _raises_alone(one))
    )


def _raises_alone(one: ast.If) -> bool:
    return not one.orelse and len(one.body) == 1 and isinstance(one.body[0], ast.Raise)


@functools.lru_cache(maxsize=8)
def parsed(filename: str) -> ast.Module:
    """The code of a file; of one whose lines are not known, or are none of Python's, nothing."""
    try:
        return ast.parse("".join(linecache.getlines(filename)))
    except (SyntaxError, ValueError):
        return ast.Module(body=[], type_ignores=[])


def _asked(one: ast.AST) -> Iterator[tuple[ast.expr, Check]]:
    """What a statement that checks asks for its truth, and the truth with which it does nothing.

    Of a condition of several parts not all are asked: they must do nothing else.
    """
    if isinstance(one, ast.Assert):
        test, wanted, error = one.test, True, "AssertionError"
        calls: tuple[str, ...] = ()
    elif isinstance(one, ast.If) and not one.orelse and (found := _told_or_raised(one.body)) is not None:
        test, wanted = one.test, False
        error, calls = found
    else:
        return
    leaves = [leaf for leaf in _leaves(test, wanted) if not _asks_what_it_is(leaf[0])]
    several = isinstance(test, ast.BoolOp) or any(isinstance(part, ast.BoolOp) for part in ast.walk(test))
    if not several or is_pure(test):
        yield from ((leaf, Check(truth, error, calls)) for leaf, truth in leaves if _at_once(leaf))


def _told_or_raised(body: list[ast.stmt]) -> tuple[str, tuple[str, ...]] | None:
    """The name of the error that statements raise at the end, or "", and those of what tells people before; None where
    they do more."""
    calls = [_telling(one) for one in body]
    error = _raised(body[-1])
    if not all(calls[:-1]) or not (calls[-1] or error):
        return None
    return error, tuple(one for one in calls if one)


def _telling(one: ast.stmt) -> str:
    """The name of what a statement tells people by, and does nothing else; "" where it does more."""
    call = one.value if isinstance(one, ast.Expr) else None
    if not isinstance(call, ast.Call) or any(word.arg in (None, "file") for word in call.keywords):
        return ""
    given = [*call.args, *(word.value for word in call.keywords)]
    named = ast.unparse(call.func)
    return named if named.replace(".", "").replace("_", "").isalnum() and all(map(is_pure, given)) else ""


def _raised(one: ast.stmt) -> str:
    """The name of what a statement raises; "" where it does not."""
    raised = one.exc if isinstance(one, ast.Raise) else None
    named = raised.func if isinstance(raised, ast.Call) else raised
    return named.id if isinstance(named, ast.Name) else ""


def _leaves(test: ast.expr, wanted: bool) -> Iterator[tuple[ast.expr, bool]]:
    if isinstance(test, ast.BoolOp):
        for part in test.values:
            yield from _leaves(part, wanted)
    elif isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        yield from _leaves(test.operand, not wanted)
    else:
        yield test, wanted


def _asks_what_it_is(leaf: ast.expr) -> bool:
    return isinstance(leaf, ast.Compare) and isinstance(leaf.ops[0], (ast.Is, ast.IsNot, ast.In, ast.NotIn))


def _at_once(leaf: ast.expr) -> bool:
    """Whether all that a part of a condition asks is asked, or does nothing else."""
    inner = list(ast.walk(leaf))
    chained = any(isinstance(one, ast.Compare) and len(one.ops) > 1 for one in inner)
    chosen = any(isinstance(one, ast.IfExp | ast.BoolOp | ast.NamedExpr) for one in inner)
    return not (chained or chosen) or is_pure(leaf)


def _is_bool(call: ast.Call) -> bool:
    return isinstance(call.func, ast.Name) and call.func.id == "bool"


def _place(one: ast.expr | ast.stmt) -> Place:
    return one.lineno, one.end_lineno, one.col_offset, one.end_col_offset
