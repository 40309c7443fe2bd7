"""How inputs are spoilt: bytes and JSON values, by a seeded generator."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from random import Random
from typing import Any, Final

NUMBERS: Final = (
    *(0, 1, -1, 2, 7, 63, 127, 128, 255, 256, 4096, 65_535, 65_536),
    *(2**31 - 1, 2**31, -(2**31), 2**32 - 1, 2**32, 2**53, 2**61, 2**62 - 1, 2**62),
    *(2**63 - 1, 2**63, -(2**63), 2**64 - 1, 2**64, 2**70, -(2**70)),
)
"""Where columns, structs and JavaScript end."""
TEXTS: Final = (
    *("", "a", "0", "-", " ", "\0", "\n", "\x7f", "é", "\u202e", "\u2028", "\U0001f600", "e\u0301"),
    *("..", "../x", "/etc/passwd", "a/b", "a\\b", "%00", "%s%n", "$(HOME)", "$$(HOME)", "{}", "*"),
    *(
        "a|b",
        "a||b",
        "--option",
        "-x",
        "true",
        "null",
        "NaN",
        "1e400",
        "1_0",
        "٣",
        "\ufeff",
        "x" * 300,
    ),
    *("2026-01-01 00:00:00,000 CRITICAL forged\n", "10.0.0.1:1", "[::1]:1", "localhost", "0x10"),
)
"""What texts are mistaken for."""
BYTES: Final = (*(text.encode() for text in TEXTS), b"\xff", b"\xc0\x80", b"\xed\xa0\x80", b"\x80")
"""And what is no UTF-8."""
_LONE: Final = "\ud800"
_KEPT_BYTES: Final = 1 << 20


def mutated(rng: Random, data: bytes, times: int = 4) -> bytes:
    """Return *data* with up to *times* things done to it: bits, bytes, cuts, numbers, repeats."""
    spoilt = bytearray(data)
    for _ in range(rng.randint(1, times)):
        rng.choice(_WAYS)(rng, spoilt)
    return bytes(spoilt[:_KEPT_BYTES])


def _flip(rng: Random, data: bytearray) -> None:
    if data:
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)


def _set(rng: Random, data: bytearray) -> None:
    if data:
        data[rng.randrange(len(data))] = rng.choice((0, 1, 0x7F, 0x80, 0xFF, rng.randrange(256)))


def _insert(rng: Random, data: bytearray) -> None:
    at = rng.randint(0, len(data))
    data[at:at] = rng.choice((rng.randbytes(rng.randint(1, 9)), rng.choice(BYTES)))


def _delete(rng: Random, data: bytearray) -> None:
    at = rng.randint(0, len(data))
    del data[at : at + rng.choice((1, 2, 4, 8, 40))]


def _cut(rng: Random, data: bytearray) -> None:
    del data[rng.randint(0, len(data)) :]


def _repeat(rng: Random, data: bytearray) -> None:
    start = rng.randint(0, len(data))
    piece = data[start : start + rng.choice((1, 4, 16, 64, 512))]
    at = rng.randint(0, len(data))
    data[at:at] = piece * rng.choice((1, 1, 2, 16))


def _number(rng: Random, data: bytearray) -> None:
    form = rng.choice(("<H", "<I", "<Q", ">H", ">I", ">Q"))
    size = struct.calcsize(form)
    if len(data) >= size:
        at = rng.randint(0, len(data) - size)
        old = struct.unpack_from(form, data, at)[0]
        new = rng.choice((*NUMBERS, len(data), old + 1, old - 1, old * 2))
        struct.pack_into(form, data, at, new % (1 << 8 * size))


_WAYS: Final = (_flip, _set, _insert, _delete, _cut, _repeat, _number, _number)


def any_value(rng: Random, depth: int = 2) -> Any:
    """Return a JSON value of any kind, odd ones above all."""
    simple: tuple[Any, ...] = (
        rng.choice(NUMBERS),
        rng.choice(TEXTS),
        rng.choice((None, True, False, 0.5, -0.0, 1e308, float("nan"), float("inf"), _LONE)),
        rng.choice(([], {}, [[]], [None], {"": None})),
        "x" * rng.choice((1, 64, 256, 5_000)),
    )
    kind = rng.randrange(8 if depth else 5)
    if kind < len(simple):
        return simple[kind]
    if kind == len(simple):
        return [any_value(rng, depth - 1) for _ in range(rng.randint(1, 3))]
    return {rng.choice(TEXTS): any_value(rng, depth - 1) for _ in range(rng.randint(1, 3))}


def spoil(rng: Random, value: Any, times: int = 3) -> Any:
    """Return a copy of a JSON value in which up to *times* places have another value, or none."""
    copy = json.loads(json.dumps(value))
    for _ in range(rng.randint(1, times)):
        places = list(_places(copy)) if isinstance(copy, dict | list) else []
        if not places:
            return any_value(rng)
        container, key = rng.choice(places)
        way = rng.randrange(6)
        if way == 0:
            del container[key]
        elif way == 1 and isinstance(container, dict):
            container[rng.choice((*TEXTS, "more"))] = any_value(rng)
        elif way == 1:
            container.insert(rng.randint(0, len(container)), container[key])
        else:
            container[key] = _like(rng, container[key]) if way < 5 else any_value(rng)
    return copy


def _like(rng: Random, value: Any) -> Any:
    """Return a value of the same type, mostly: what a check of types lets pass."""
    if isinstance(value, bool) or value is None:
        return any_value(rng, 1)
    if isinstance(value, int):
        return rng.choice((*NUMBERS, value + 1, value - 1, float(value)))
    if isinstance(value, str):
        at = rng.randint(0, len(value))
        return rng.choice((rng.choice(TEXTS), value[:at] + rng.choice(TEXTS) + value[at:], _LONE))
    return any_value(rng, 2)


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    rows = value.items() if isinstance(value, dict) else enumerate(value)
    for key, inner in list(rows):
        yield value, key
        if isinstance(inner, dict | list):
            yield from _places(inner)


def nested(rng: Random) -> str:
    """Return JSON deeper than any parser that recurses bears."""
    depth = rng.choice((100, 990, 5_000, 100_000))
    return rng.choice(("[" * depth, "[" * depth + "]" * depth, '{"a":' * depth))


def json_bytes(value: Any) -> bytes:
    """Return it as JSON; a lone surrogate stays an escape, as anyone may send it."""
    return json.dumps(value).encode()
