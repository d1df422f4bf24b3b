"""named_shapes(text): a batch written in one line, `x=8x3x32x32,y=8:int64`, as shapes by name."""

from __future__ import annotations

from placer.errors import UsageError


def named_shapes(text: str) -> dict[str, object]:
    """Shapes by name, (shape, type) where a type is given. Raises UsageError for what is no shape."""
    shapes: dict[str, object] = {}
    for part in text.split(","):
        name, _, rest = part.strip().partition("=")
        shape, typed, dtype = rest.partition(":")
        sizes = shape.split("x") if shape or not typed else []  # `weight=:float32`: one number, without dims
        if not name or not all(size.isdecimal() and int(size) > 0 for size in sizes) or (typed and not dtype):
            raise UsageError(
                f"{part!r} of the batch is no named shape; write NAME=ROWSxSIZE, as in input_ids=8x128, or with a "
                "type, as in y=8:int64, and one number without dims as weight=:float32"
            )
        if name in shapes:
            raise UsageError(f"the batch names {name!r} twice; give each input once")
        numbers = tuple(int(size) for size in sizes)
        shapes[name] = (numbers, dtype) if typed else numbers
    return shapes
