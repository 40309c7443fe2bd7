"""The times that objects of a schedule were made for, as their annotations have them. Pure."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Final

from dledger_operator.api import names
from dledger_operator.api.spec import Json

_TIME: Final = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ")


def scheduled_at(metadata: Json) -> str:
    """Return the time that an object was made for; empty if it was not made for one.

    It has the form that this operator writes: anybody can write an annotation.
    """
    text = (metadata.get("annotations") or {}).get(names.SCHEDULED_ANNOTATION, "")
    try:
        datetime.fromisoformat(text)
    except ValueError:
        return ""
    return text if _TIME.fullmatch(text) else ""


def text_of(at: datetime) -> str:
    """Return a time as this operator writes it, RFC 3339 in whole seconds of UTC."""
    return at.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def unix_minute(at: str) -> int:
    """Return the minute of an RFC 3339 time, counted from 1970."""
    return int(datetime.fromisoformat(at).timestamp()) // 60
