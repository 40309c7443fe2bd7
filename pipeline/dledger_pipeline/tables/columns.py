"""Which columns an exported table has: those of view ``messages``, and a user's out of JSON. Pure.

A user's columns come from a file in a small language of its own, which `columns_of` reads::

    {"columns": [
        {"name": "price", "type": "double"},
        {"name": "lines", "type": {"list": {"struct": [{"name": "sku", "type": "string"}]}}}
    ]}

Used by the job `export` and by its workers.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, Final

import pyarrow as pa

from dledger.errors import InvalidArgument
from dledger_pipeline.log.messages import MESSAGE_SCHEMA

ERROR: Final = "_error"
"""Of a row: what is wrong with its body, or null."""
DATE: Final = "date"
"""Of a row: the day on which the message was stored, UTC."""
PARTITIONED_BY: Final = ("topic", DATE)
MAX_FIELDS: Final = 1000
"""Of all columns and what is inside of them: some engines fail on more."""

_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}")
_TYPES: Final = {
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "double": pa.float64(),
    "string": pa.string(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us", "UTC"),
}
_OTHER_FORMATS: Final = {
    ".avsc": "Avro",
    ".proto": "Protobuf",
    ".desc": "Protobuf",
    ".pb": "Protobuf",
}
"""By the end of a schema file's name, what it describes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Columns:
    """What a row has.

    Attributes:
        has_body: Whether the body stays.
        of_json: The columns of a JSON body, all of which may be null; none: bodies are not parsed.
    """

    has_body: bool = True
    of_json: tuple[pa.Field, ...] = ()

    def schema(self) -> pa.Schema:
        """Return the names and types, in order."""
        own = [field for field in MESSAGE_SCHEMA if self.has_body or field.name != "body"]
        added = [pa.field(DATE, pa.date32(), nullable=False), *self.of_json]
        return pa.schema([*own, *added, pa.field(ERROR, pa.string())])

    def digest(self) -> str:
        """Return a hash: tables with the same one have the same columns, whoever computes it."""
        told = [self.schema().names, [_as_json(field) for field in self.of_json]]
        return sha256(json.dumps(told).encode()).hexdigest()[:16]


def columns_of(name: str, text: str, *, has_body: bool) -> Columns:
    """Return the columns that a schema file asks for.

    Args:
        name: The file's, which also tells what kind it is.
        text: What is in it.
        has_body: See `Columns`.

    Raises:
        InvalidArgument: It is none, or of a format that is not decoded; says where and why.
    """
    for end, other in _OTHER_FORMATS.items():
        if name.endswith(end):
            raise InvalidArgument(
                f"{name}: {other} bodies are not decoded by export: without their producers' "
                "registry a body does not say by which schema it was written. They stay in column "
                f"body, of which Spark's from_{other.lower()} makes columns"
            )
    try:
        given = json.loads(text)
        if not isinstance(given, dict) or [*given] != ["columns"]:
            raise InvalidArgument('it must be {"columns": [...]}')
        fields = _fields(given["columns"], "columns")
    except (ValueError, RecursionError) as error:
        raise InvalidArgument(f"{name}: not JSON: {error}") from error
    except InvalidArgument as error:
        raise InvalidArgument(f"{name}: {error}") from None
    if sum(map(_size, fields)) > MAX_FIELDS:
        raise InvalidArgument(f"{name}: it has over {MAX_FIELDS} fields")
    taken = {field.lower() for field in (*MESSAGE_SCHEMA.names, DATE, ERROR)}
    for field in fields:
        if field.name.lower() in taken:
            raise InvalidArgument(f"{name}: each message has a column {field.name} of its own")
    return Columns(has_body=has_body, of_json=fields)


def _fields(given: Any, where: str) -> tuple[pa.Field, ...]:
    if not isinstance(given, list) or not given:
        raise InvalidArgument(f"{where} must be a list of fields, not {given!r:.80}")
    fields = tuple(_field(each, f"{where}[{at}]") for at, each in enumerate(given))
    if len({field.name.lower() for field in fields}) < len(fields):
        raise InvalidArgument(f"{where} has a name twice; case does not tell names apart")
    return fields


def _field(given: Any, where: str) -> pa.Field:
    if not isinstance(given, dict) or {*given} != {"name", "type"}:
        raise InvalidArgument(f'{where} must be {{"name": ..., "type": ...}}, not {given!r:.80}')
    name = given["name"]
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise InvalidArgument(f"{where}: {name!r:.80} is no name of letters, digits and _")
    return pa.field(name, _type(given["type"], f"{where}.type"))


def _type(given: Any, where: str) -> pa.DataType:
    match given:
        case str() if given in _TYPES:
            return _TYPES[given]
        case {"list": inner} if len(given) == 1:
            return pa.list_(pa.field("element", _type(inner, f"{where}.list")))
        case {"struct": inner} if len(given) == 1:
            return pa.struct(_fields(inner, f"{where}.struct"))
    raise InvalidArgument(
        f"{where} must be one of {', '.join(_TYPES)}, "
        f'{{"list": type}} or {{"struct": [fields]}}, not {given!r:.80}'
    )


def _as_json(field: pa.Field) -> dict[str, Any]:
    """Return a field as a schema file has it."""
    return {"name": field.name, "type": _type_as_json(field.type)}


def _type_as_json(kind: pa.DataType) -> Any:
    if pa.types.is_list(kind):
        return {"list": _type_as_json(kind.value_type)}
    if pa.types.is_struct(kind):
        return {"struct": [_as_json(kind.field(at)) for at in range(kind.num_fields)]}
    return next(name for name, known in _TYPES.items() if known == kind)


def _size(field: pa.Field) -> int:
    inner: Sequence[pa.Field] = [field.type.field(at) for at in range(field.type.num_fields)]
    return 1 + sum(map(_size, inner))
