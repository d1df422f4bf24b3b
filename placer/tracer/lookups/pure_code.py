"""Which expressions only look: what they ask may be left out, or asked once more, and nothing else is another."""

from __future__ import annotations

import ast

_LOOKING = """any all sum max min mean median abs isnan isinf isfinite item norm numel nelement size dim detach float
double long int bool cpu numpy tolist std var amax amin argmax argmin eq ne lt le gt ge count_nonzero sqrt square exp
log format isclose allclose equal is_floating_point unique"""
_METHODS = frozenset(_LOOKING.split())
_BUILTINS = frozenset({"float", "int", "bool", "len", "abs", "isinstance", "hasattr", "str", "repr", "round", "type"})
_LIBRARIES = frozenset({"torch", "math", "np", "numpy"})
_PARTS = (
    ast.Constant, ast.Name, ast.Attribute, ast.Subscript, ast.Slice, ast.Compare, ast.BoolOp, ast.UnaryOp, ast.BinOp,
    ast.IfExp, ast.Tuple, ast.List, ast.JoinedStr, ast.FormattedValue, ast.Call, ast.keyword, ast.operator, ast.unaryop,
    ast.cmpop, ast.boolop, ast.expr_context,
)  # fmt: skip


def is_pure(one: ast.AST) -> bool:
    """Whether an expression only looks: at names, attributes, items, and by functions that are known to."""
    return all(isinstance(part, _PARTS) and (not isinstance(part, ast.Call) or _looks(part)) for part in ast.walk(one))


def _looks(call: ast.Call) -> bool:
    if any(word.arg in (None, "out") for word in call.keywords):
        return False
    if isinstance(call.func, ast.Name):
        return call.func.id in _BUILTINS
    if not isinstance(call.func, ast.Attribute) or call.func.attr not in _METHODS:
        return False
    of_numpy = isinstance(call.func.value, ast.Name) and call.func.value.id in _LIBRARIES
    return not of_numpy or len(call.args) < 2
