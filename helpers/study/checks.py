"""What is wrong with a row or a block of settings: pydantic's findings as sentences of this project."""

import re
from collections import Counter
from typing import Annotated

from pydantic import BaseModel, ConfigDict, StringConstraints, ValidationError

from helpers.study.files import DataError, read_jsonl

STRICT = ConfigDict(strict=True, allow_inf_nan=False)  # no value is turned into another type
Text = Annotated[str, StringConstraints(pattern=r"\S")]
_EXPECTED = {
    "string_type": "text", "int_type": "a whole number", "float_type": "a number", "bool_type": "true or false",
    "list_type": "a list", "dict_type": "an object of fields", "model_type": "an object of fields",
}  # fmt: skip


class Row(BaseModel):
    """A row as it is read. A field's ``description`` ends the sentence about it: why it is needed, or what to do."""

    model_config = STRICT


def sentences(error, model):
    """A ValidationError as sentences, each naming its field; a ValueError of a check says its own, one a line."""
    found = {}
    for part in error.errors(include_url=False):
        where = ".".join(map(str, part["loc"]))
        where = re.sub(r"(\w+?)s?\.(\d+)\b\.?", lambda m: f"{m[1]} {int(m[2]) + 1}: ", where)
        kind, value, ctx = part["type"], part["input"], part.get("ctx", {})
        if kind == "value_error":
            said = str(ctx["error"])
        elif kind == "missing" or value is None or (isinstance(value, str) and not value.strip()):
            said = "is missing or empty."
        elif kind in ("extra_forbidden", "unexpected_keyword_argument"):
            said = f"is not known; the fields are {', '.join(model.__pydantic_fields__)}."
        elif kind == "literal_error":
            said = f"{value!r} is unknown; use one of {ctx['expected'].replace(chr(39), '').replace(' or ', ', ')}."
        else:
            expected = _EXPECTED.get(kind) or part["msg"].removeprefix("Input should be ")
            said = f"is {value!r:.60}; expected {expected}."
        field = model.__pydantic_fields__.get(part["loc"][0]) if part["loc"] else None
        if field is not None and field.description and kind != "value_error":
            said = f"{said[:-1]}; {field.description}."
        found |= dict.fromkeys(f"{where.removesuffix(': ')} {line}".strip() for line in said.splitlines())
    return list(found)


def problems(model, row):
    """Every reason why a row does not fit a model, as sentences; empty where it fits."""
    try:
        model.model_validate(row)
    except ValidationError as error:
        return sentences(error, model)
    return []


def sound(rows, model, noun, key, where=""):
    """The rows unchanged; DataError with every problem of every row, each by the row's ``key``, which is there once."""
    found = [f"{noun} {row.get(key) or f'(no {key})'}: {said}" for row in rows for said in problems(model, row)]
    counts = Counter(str(row.get(key)) for row in rows)
    found += [f"{noun} {name}: the {key} appears {n} times." for name, n in counts.items() if n > 1]
    if found:
        raise DataError("\n".join(where + said for said in found))
    return rows


def load(path, check):
    """Rows of a JSON Lines file that ``check`` accepts, in file order; DataError names the file."""
    if not (rows := read_jsonl(path)):
        raise DataError(f"{path}: holds no row.")
    return check(rows, where=f"{path}: ")
