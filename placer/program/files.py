"""Programs as JSON: `placer explain PLAN --program --rank N --json` prints one, a dry run takes those of others."""

from __future__ import annotations

from pathlib import Path

from pydantic import JsonValue, TypeAdapter, ValidationError

from placer.errors import UsageError
from placer.files import parsed_json, read_text
from placer.program.instructions import Program

PROGRAM: TypeAdapter[Program] = TypeAdapter(Program)


def program_document(program: Program) -> JsonValue:
    """A program with everything it says; `load_program` reads it back equal."""
    found: JsonValue = PROGRAM.dump_python(program, mode="json")
    return found


def load_program(path: str | Path) -> Program:
    """The program of a file: what `program_document` gives, or a document that has it under `program`.

    Raises UsageError for a file that is neither.
    """
    text = read_text(path, "the program")
    document = parsed_json(text, f"{path} is not a program")
    if isinstance(document, dict) and "program" in document:
        document = document["program"]
    try:
        return PROGRAM.validate_python(document, strict=False)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise UsageError(
            f"{path} is not a program: {where}: {first['msg']}; make one with "
            "`placer explain plan.json --program --rank N --json`"
        ) from None
