"""What is in a message's body: unpacked, and a JSON object as the values of columns. Pure.

Bodies are strangers' bytes. One that is not what its message or the schema says is told, and costs
no other message anything. Used by `rows`.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, date, datetime, timedelta
from typing import Any, Final, NoReturn

import pyarrow as pa

from dledger.checks.packed import content_of
from dledger.rpc.status import Rejected

_EITHER_FORM: Final = 47
"""What zlib is told: a gzip or its own form, whichever the body begins as."""
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MAX_LONG: Final = (1 << 63) - 1
_SHOWN: Final = 60
"""Characters of a value that is told."""


class UnfitBody(ValueError):
    """A body is not what it should be; says why."""


def unpack(body: bytes) -> bytes:
    """Return what is in a body that says GZIP: at most 4 MiB, as nodes hold their clients to.

    Raises:
        UnfitBody: It is none, is damaged, or more comes out.
    """
    try:
        content_of(body)
    except Rejected as error:
        raise UnfitBody(str(error)) from None
    return zlib.decompress(body, wbits=_EITHER_FORM)


def json_values(body: bytes, fields: Sequence[pa.Field]) -> dict[str, Any]:
    """Return the values of *fields* in a body that is a JSON object; what it lacks is None.

    Raises:
        UnfitBody: It is no JSON object in UTF-8, or a value is of another type.
    """
    try:
        found = json.loads(body.decode(), parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise UnfitBody(f"the body is not JSON: {error}") from None
    if not isinstance(found, dict):
        raise UnfitBody(f"the body is no JSON object but {found!r:.{_SHOWN}}")
    return _struct(found, fields, "")


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"JSON has no {name}")


def _struct(found: Mapping[str, Any], fields: Sequence[pa.Field], where: str) -> dict[str, Any]:
    return {
        field.name: _value(found.get(field.name), field.type, f"{where}{field.name}")
        for field in fields
    }


def _value(found: Any, kind: pa.DataType, where: str) -> Any:
    if found is None:
        return None
    if pa.types.is_struct(kind) and isinstance(found, dict):
        fields = [kind.field(at) for at in range(kind.num_fields)]
        return _struct(found, fields, f"{where}.")
    if pa.types.is_list(kind) and isinstance(found, list):
        return [_value(each, kind.value_type, f"{where}[{at}]") for at, each in enumerate(found)]
    try:
        return _SCALARS[kind](found)
    except (KeyError, ValueError, OverflowError):
        raise UnfitBody(f"{where} is no {kind} but {found!r:.{_SHOWN}}") from None


def _boolean(found: Any) -> bool:
    if not isinstance(found, bool):
        raise ValueError
    return found


def _whole(found: Any, most: int) -> int:
    if not isinstance(found, int) or isinstance(found, bool) or not -most - 1 <= found <= most:
        raise ValueError
    return found


def _double(found: Any) -> float:
    if not isinstance(found, int | float) or isinstance(found, bool):
        raise ValueError
    return float(found)


def _string(found: Any) -> str:
    if not isinstance(found, str):
        raise ValueError
    found.encode()  # JSON may have half of a surrogate pair, which UTF-8 has not
    return found


def _timestamp(found: Any) -> datetime:
    """Return a time out of RFC 3339 with an offset, or out of Unix milliseconds."""
    if isinstance(found, str):
        told = datetime.fromisoformat(found)
        if told.tzinfo is None:
            raise ValueError
        return told.astimezone(UTC)
    return _EPOCH + timedelta(milliseconds=_whole(found, _MAX_LONG))


_SCALARS: Final[Mapping[pa.DataType, Callable[[Any], Any]]] = {
    pa.bool_(): _boolean,
    pa.int32(): lambda found: _whole(found, (1 << 31) - 1),
    pa.int64(): lambda found: _whole(found, _MAX_LONG),
    pa.float64(): _double,
    pa.string(): _string,
    pa.date32(): lambda found: date.fromisoformat(_string(found)),
    pa.timestamp("us", "UTC"): _timestamp,
}
