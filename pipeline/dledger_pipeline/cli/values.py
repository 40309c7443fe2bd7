"""The values that options of ``dledger-pipeline`` take, from their text.

What cannot be taken raises argparse.ArgumentTypeError, which argparse tells with the option's name.
"""

from __future__ import annotations

import argparse
import math
from typing import Final

from dledger.errors import InvalidArgument
from dledger_pipeline.archive.manifest import time_ms
from dledger_pipeline.object_store.store import is_folder

_UNITS_S: Final = {"s": 1, "m": 60, "h": 3600, "d": 86_400}


def items(text: str) -> tuple[str, ...]:
    """Return the items of a list with commas, at least one."""
    found = tuple(filter(None, (item.strip() for item in text.split(","))))
    if not found:
        raise argparse.ArgumentTypeError("must not be empty")
    return found


def table_name(text: str) -> str:
    """Return the name of a table in a namespace."""
    if not all(text.rpartition(".")):
        raise argparse.ArgumentTypeError(f"{text!r} is not NAMESPACE.NAME")
    return text


def group_id(text: str) -> str:
    """Return the id of a broker group."""
    if not is_folder(text):
        raise argparse.ArgumentTypeError(f"{text!r} is not the id of a group, such as `list` shows")
    return text


def positive(text: str) -> int:
    """Return an integer above 0."""
    if not text.isascii() or not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number above 0")
    return int(text)


def size_mib(text: str) -> int:
    """Return a size in MiB; it may be 0."""
    return 0 if text == "0" else positive(text)


def port(text: str) -> int:
    """Return the number of a port; 0 is one."""
    if not text.isascii() or not text.isdigit() or int(text) >= 1 << 16:
        raise argparse.ArgumentTypeError(f"{text!r} is not a port")
    return int(text)


def duration_ms(text: str) -> int:
    """Return a duration with its unit in milliseconds."""
    unit_s = _UNITS_S.get(text[-1:], 0)
    if not unit_s or not text[:-1].isascii() or not text[:-1].isdigit():
        raise argparse.ArgumentTypeError(f"{text!r} is not a duration, such as 90m, 24h or 7d")
    return int(text[:-1]) * unit_s * 1000


def instant_ms(text: str) -> int:
    """Return a time as RFC 3339 has it in Unix milliseconds."""
    try:
        return time_ms(text)
    except InvalidArgument as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def rate(text: str) -> float:
    """Return a rate in MB a second; 0: as fast as it goes."""
    try:
        found = float(text)
    except ValueError:
        found = -1.0
    if not math.isfinite(found) or found < 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of MB a second, or 0")
    return found


def setting(text: str) -> tuple[str, str]:
    """Return the key and the value of a setting."""
    key, separator, value = text.partition("=")
    if not key or not separator:
        raise argparse.ArgumentTypeError(f"{text!r} is not KEY=VALUE")
    return key, value
