"""Rows of exported tables: what is in bodies, and what is told of those that are something else."""

from __future__ import annotations

import gzip
import json
import zlib
from typing import Any

import pyarrow as pa
import pytest

from dledger.broker.message import Encoding
from dledger.errors import InvalidArgument
from dledger_pipeline.log.messages import MESSAGE_SCHEMA
from dledger_pipeline.tables.columns import Columns, columns_of
from dledger_pipeline.tables.rows import Told, Wanted, rows_of


def _batch(*rows: dict[str, Any]) -> pa.RecordBatch:
    """Return messages; what a row does not say is that of the first message of any log."""
    some = {"topic": "t", "queue_id": 0, "queue_offset": 0, "message_id": "m", "tag": ""}
    some |= {"keys": [], "properties": [], "body": b"", "encoding": 1, "born_at_ms": 0}
    some |= {"stored_at_ms": 0, "client_id": "", "born_host": "", "trace_context": ""}
    some |= {"index": 1, "term": 1, "message_group": "", "deliver_at_ms": 0, "priority": -1}
    return pa.RecordBatch.from_pylist([some | row for row in rows], MESSAGE_SCHEMA)


def _made(
    batch: pa.RecordBatch, columns: Columns | None = None, *, after: int = 0
) -> tuple[list[dict[str, Any]], Told]:
    told = Told()
    made = rows_of([batch], columns or Columns(), Wanted(after=after), told)
    return [row for each in made for row in each.to_pylist()], told


def test_a_copy_of_a_message_that_was_exported_is_no_new_one() -> None:
    """It lies in a later entry, and its index says that its own was before."""
    rows, _ = _made(_batch({"index": 5}, {"index": 11}, {"index": 10}), after=10)

    assert [row["index"] for row in rows] == [11]


def test_bodies_are_unpacked_and_no_client_is_believed() -> None:
    """What says GZIP and is none, is cut short, or unpacks to more than a body may be, stays."""
    good = {b"gzip": gzip.compress(b"gzip"), b"zlib": zlib.compress(b"zlib")}
    bad = [b"plain", gzip.compress(b"x")[:-1], gzip.compress(bytes((4 << 20) + 1))]
    bodies = [*good.values(), *bad]

    rows, told = _made(_batch(*({"body": body, "encoding": Encoding.GZIP} for body in bodies)))

    assert [row["body"] for row in rows] == [*good, *bad]
    assert [row["encoding"] for row in rows] == [1, 1, 2, 2, 2]
    assert [row["_error"] is None for row in rows] == [True, True, False, False, False]
    assert "none: it begins neither as a gzip nor" in rows[2]["_error"]
    assert (told.not_unpacked, told.not_fitting) == (3, 0)


def test_unpacked_bodies_are_held_a_part_at_a_time() -> None:
    """Thirty bodies of 4 MiB come out of 120 KB."""
    packed = {"body": gzip.compress(bytes(4 << 20)), "encoding": Encoding.GZIP}
    parts = rows_of([_batch(*[packed] * 9)], Columns(), Wanted(after=0), Told())

    assert [part.num_rows for part in parts] == [4, 4, 1]


SCHEMA = {
    "columns": [
        {"name": "ok", "type": "boolean"},
        {"name": "small", "type": "int"},
        {"name": "large", "type": "long"},
        {"name": "price", "type": "double"},
        {"name": "name", "type": "string"},
        {"name": "day", "type": "date"},
        {"name": "at", "type": "timestamp"},
        {"name": "lines", "type": {"list": {"struct": [{"name": "sku", "type": "string"}]}}},
    ]
}


def _columns(schema: object = SCHEMA, *, has_body: bool = True) -> Columns:
    return columns_of("schema.json", json.dumps(schema), has_body=has_body)


def test_json_bodies_become_columns() -> None:
    """Of the types that the schema says; what a body lacks is null, what it has more is left."""
    body = {
        "ok": True,
        "small": -1,
        "large": 1 << 62,
        "price": 3,
        "name": "é",
        "day": "2026-01-31",
        "at": "2026-01-31T12:00:00.5+01:00",
        "lines": [{"sku": "a", "more": 1}, None, {}],
        "else": {"x": 1},
    }
    packed = {"body": gzip.compress(b'{"at": 1500}'), "encoding": Encoding.GZIP}

    rows, told = _made(_batch({"body": json.dumps(body).encode()}, packed), _columns())

    first, second = rows
    assert first["day"].isoformat() == "2026-01-31"
    assert first["at"].isoformat() == "2026-01-31T11:00:00.500000+00:00"
    assert first["lines"] == [{"sku": "a"}, None, {"sku": None}]
    assert {name: first[name] for name in ("ok", "small", "large", "price", "name")} == {
        name: body[name] for name in ("ok", "small", "large", "price", "name")
    }
    assert second["at"].isoformat() == "1970-01-01T00:00:01.500000+00:00"
    assert (second["name"], first["_error"], second["_error"]) == (None, None, None)
    assert told == Told()


def test_the_same_columns_have_the_same_hash_for_ever() -> None:
    """A table is known by it, whatever another version of a library says of types."""
    assert _columns().digest() == "d337c14e437a7932"
    others = {"columns": [{"name": "lines", "type": {"list": "int"}}]}
    choices = [_columns(others), _columns(has_body=False), Columns(), _columns()]
    assert len({each.digest() for each in choices}) == 4


@pytest.mark.parametrize(
    ("body", "error"),
    [
        (b"\xff", "not JSON"),
        (b"[" * 100_000, "not JSON"),
        (b'{"price": NaN}', "JSON has no NaN"),
        (b"7", "no JSON object but 7"),
        (b'{"small": 2147483648}', "small is no int32"),
        (b'{"small": true}', "small is no int32"),
        (b'{"large": 1.5}', "large is no int64"),
        (b'{"price": "3"}', "price is no double"),
        (b'{"price": ' + b"9" * 400 + b"}", "price is no double"),
        (b'{"name": "\\ud800"}', "name is no string"),
        (b'{"at": "2026-01-31T12:00:00"}', "at is no timestamp"),
        (b'{"at": 9223372036854775807}', "at is no timestamp"),
        (b'{"lines": {}}', "lines is no list"),
        (b'{"lines": [{"sku": 1}]}', "lines[0].sku is no string"),
    ],
)
def test_a_body_that_does_not_fit_is_told(body: bytes, error: str) -> None:
    """Its columns are null and it stays as it is; the message beside it is none the worse."""
    rows, told = _made(_batch({"body": body}, {"body": b'{"name": "x"}'}), _columns())

    assert error in rows[0]["_error"]
    assert (rows[0]["body"], rows[0]["name"]) == (body, None)
    assert (rows[1]["name"], rows[1]["_error"]) == ("x", None)
    assert told == Told(not_fitting=1)


@pytest.mark.parametrize(
    ("schema", "error"),
    [
        ({"fields": []}, "it must be"),
        ({"columns": [{"name": "a", "type": "text"}]}, r"columns\[0\].type must be one of"),
        ({"columns": [{"name": "a b", "type": "int"}]}, "is no name of"),
        ({"columns": [{"name": "Topic", "type": "int"}]}, "a column Topic of its own"),
        ({"columns": [{"name": n, "type": "int"} for n in "aA"]}, "a name twice"),
        ({"columns": [{"name": "a", "type": {"list": {"list": "x"}}}]}, "type.list.list must be"),
    ],
)
def test_a_wrong_schema_is_refused_where_it_is_wrong(schema: object, error: str) -> None:
    """Before anything is read."""
    with pytest.raises(InvalidArgument, match=f"schema.json: .*{error}"):
        _columns(schema)


@pytest.mark.parametrize(("name", "kind"), [("a.avsc", "Avro"), ("a.proto", "Protobuf")])
def test_schemas_of_other_formats_are_refused_by_name(name: str, kind: str) -> None:
    """With what to do instead."""
    with pytest.raises(InvalidArgument, match=f"{kind} bodies are not decoded by export.*from_"):
        columns_of(name, "{}", has_body=True)
