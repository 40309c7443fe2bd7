"""Messages that a client's library might choke on: what a door takes, refuses, and took once. Pure.

`docs/clients.md` has the table of which field who believes, of which each line has an example.
"""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import md5
from typing import Any, Final

from dledger.broker.message import Columns, Encoding
from dledger.broker.produce import encode_produce
from dledger.rpc.rocketmq_stubs import definition, service

_MIB: Final = 1 << 20
_GZIP: Final = definition.Encoding.GZIP
_OTHER_PROGRAM: Final = "poison"
"""The id of the client that sends them."""
_BOMB: Final = gzip.compress(bytes(64 * _MIB))
_NAMED: Final = b"\x1f\x8b\x08\x08\x00\x00\x00\x00\x00\xffname\x00" + gzip.compress(b"named")[10:]
_BAD_TEXT: Final = "\N{REPLACEMENT CHARACTER}" * 3
_NO_TEXT: Final = b"\xed\xa0\x80" * 3
"""Half a pair of surrogates, which is no UTF-8, of as many bytes."""
PACKED: Final[Mapping[str, bytes]] = {
    "in a gzip": gzip.compress(b"in a gzip"),
    "in zlib's form": zlib.compress(b"in zlib's form"),
}
"""Bodies that are packed well, by what is in them; C++ sends the other."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Poison:
    """One message.

    Attributes:
        name: What is odd about it.
        body: Its body.
        system: Fields of its system properties.
        properties: Its user properties.
        refused: The code of its refusal; "": it is taken.
        shape: Changes the whole message.
        is_bytes: Its texts are to be no UTF-8.
    """

    name: str
    body: bytes = b""
    system: Mapping[str, Any] = field(default_factory=dict)
    properties: Mapping[str, str] = field(default_factory=dict)
    refused: str = ""
    shape: Callable[[definition.Message], None] | None = None
    is_bytes: bool = False

    def request(self, topic: str, number: int) -> bytes:
        """Return the SendMessage that carries it."""
        message = definition.Message(
            topic=definition.Resource(name=topic),
            body=self.body or f"odd {self.name}".encode(),
            system_properties=definition.SystemProperties(
                **{"message_id": f"odd-{number}", **self.system}
            ),
            user_properties=dict(self.properties),
        )
        if self.shape is not None:
            self.shape(message)
        raw = service.SendMessageRequest(messages=[message]).SerializeToString()
        return raw.replace(_BAD_TEXT.encode(), _NO_TEXT) if self.is_bytes else bytes(raw)


def _says_gzip(name: str, body: bytes, code: str = "MESSAGE_CORRUPTED") -> Poison:
    return Poison(name=name, body=body, system={"body_encoding": _GZIP}, refused=code)


def _texts(name: str, **system: Any) -> Poison:
    return Poison(name=name, system=system, refused="BAD_REQUEST", is_bytes=True)


def _at(seconds: int) -> Callable[[definition.Message], None]:
    def shape(message: definition.Message) -> None:
        message.system_properties.born_timestamp.seconds = seconds

    return shape


def _digest(kind: int, checksum: str) -> definition.Digest:
    return definition.Digest(type=definition.DigestType.ValueType(kind), checksum=checksum)


REFUSED: Final[Sequence[Poison]] = (
    _says_gzip("GZIP over four bytes", b"evil"),
    _says_gzip("GZIP over one byte", b"\x1f"),
    _says_gzip("GZIP over its magic alone", b"\x1f\x8b"),
    _says_gzip("GZIP over the magic of LZ4", b"\x04\x22\x4d\x18 and more"),
    _says_gzip("GZIP over the magic of Zstandard", b"\x28\xb5\x2f\xfd and more"),
    _says_gzip("a gzip cut short", gzip.compress(b"x" * 1000)[:-4]),
    _says_gzip("a gzip with a wrong sum", gzip.compress(b"hello")[:-8] + bytes(8)),
    _says_gzip("something behind a gzip", gzip.compress(b"hello") + b"more"),
    _says_gzip("two gzips", gzip.compress(b"hello") * 2),
    _says_gzip("a gzip with a name", _NAMED),
    _says_gzip("a gzip of nothing", gzip.compress(b""), "MESSAGE_BODY_EMPTY"),
    _says_gzip("64 MiB in a gzip", _BOMB, "MESSAGE_BODY_TOO_LARGE"),
    _says_gzip("64 MiB in zlib's form", zlib.compress(bytes(64 * _MIB)), "MESSAGE_BODY_TOO_LARGE"),
    Poison(name="an unknown encoding", system={"body_encoding": 99}, refused="BAD_REQUEST"),
    Poison(
        name="a wrong digest",
        system={"body_digest": _digest(definition.DigestType.MD5, "00" * 16)},
        refused="MESSAGE_CORRUPTED",
    ),
    Poison(name="a tag of 5 MiB", system={"tag": "t" * 5 * _MIB}, refused="ILLEGAL_MESSAGE_TAG"),
    Poison(name="a tag with a NUL", system={"tag": "a\0b"}, refused="ILLEGAL_MESSAGE_TAG"),
    Poison(
        name="a trace context of 5 MiB",
        system={"trace_context": "t" * 5 * _MIB},
        refused="MESSAGE_PROPERTIES_TOO_LARGE",
    ),
    Poison(name="a blank key", system={"keys": [" "]}, refused="ILLEGAL_MESSAGE_KEY"),
    Poison(
        name="a property without a name",
        properties={"": "value"},
        refused="ILLEGAL_MESSAGE_PROPERTY_KEY",
    ),
    Poison(
        name="129 properties",
        properties={f"p{n}": "v" for n in range(129)},
        refused="MESSAGE_PROPERTIES_TOO_LARGE",
    ),
    Poison(name="no id", system={"message_id": ""}, refused="ILLEGAL_MESSAGE_ID"),
    Poison(name="an id of 256", system={"message_id": "i" * 256}, refused="ILLEGAL_MESSAGE_ID"),
    Poison(name="born before 1970", shape=_at(-1), refused="BAD_REQUEST"),
    Poison(name="born in the year 10000", shape=_at(253_402_300_800), refused="BAD_REQUEST"),
    Poison(
        name="a message group",
        system={"message_group": "g"},
        refused="MESSAGE_PROPERTY_CONFLICT_WITH_TYPE",
    ),
    Poison(
        name="a lite topic",
        system={"lite_topic": "l"},
        refused="MESSAGE_PROPERTY_CONFLICT_WITH_TYPE",
    ),
    Poison(
        name="a priority", system={"priority": 1}, refused="MESSAGE_PROPERTY_CONFLICT_WITH_TYPE"
    ),
    _texts("a key that is no text", keys=[_BAD_TEXT]),
    _texts("a tag that is no text", tag=_BAD_TEXT),
    _texts("an id that is no text", message_id=_BAD_TEXT),
    _texts("a host that is no text", born_host=_BAD_TEXT),
    _texts("a trace context that is no text", trace_context=_BAD_TEXT),
)
"""What no node takes."""

LARGE: Final[Sequence[Poison]] = (
    Poison(name="4 MiB", body=bytes(4 * _MIB)),
    Poison(
        name="4 MiB with all that belongs to it",
        body=bytes(4 * _MIB - 4096),
        properties={"p": "v" * 60_000},
    ),
)
"""What is in frames of more than 4 MiB, which some clients do not take."""

ODD: Final[Sequence[Poison]] = (
    *(_says_gzip(name, body, "") for name, body in PACKED.items()),
    _says_gzip("4 MiB in a gzip", gzip.compress(b"seven 7" * 500_000), ""),
    Poison(name="ids of one letter", system={"message_id": "x"}),
    Poison(name="an id of 255", system={"message_id": "i" * 255}),
    Poison(name="an id as long as theirs, and none", system={"message_id": "\0 /%ß" + "z" * 29}),
    Poison(name="keys", system={"keys": ["a\0b", "\N{PILE OF POO}", "k" * 30_000, "a", "a"]}),
    Poison(name="a tag", system={"tag": "\N{PILE OF POO}" * 100}),
    Poison(
        name="properties",
        properties={
            "__proto__": "p",
            "constructor": "c",
            "hasOwnProperty": "h",
            "toString": "t",
            "a\0b": "\0",
            "empty": "",
            "\x01\x02": "\r\n",
            "KEYS": "k",
            "TAGS": "t",
        },
    ),
    Poison(name="128 properties", properties={f"{n}": "v" * 500 for n in range(128)}),
    Poison(name="a property of 64 Ki", properties={"p": "\N{PILE OF POO}" * 65_535}),
    Poison(name="a trace context", system={"trace_context": "\0\r\n\N{PILE OF POO}"}),
    Poison(name="a trace context of 64 Ki", system={"trace_context": "t" * 65_536}),
    Poison(name="a host", system={"born_host": "\0\r\n\N{PILE OF POO}" * 60}),
    Poison(name="a host of 64 Ki", system={"born_host": "h" * 65_536}),
    Poison(name="born in 1970", shape=_at(0)),
    Poison(name="born in the year 9999", shape=_at(253_402_300_799)),
    Poison(
        name="a digest of its own",
        body=b"odd digest",
        system={
            "body_digest": _digest(
                definition.DigestType.MD5, md5(b"odd digest", usedforsecurity=False).hexdigest()
            )
        },
    ),
    Poison(name="a kind of digest that nobody knows", system={"body_digest": _digest(9, "x")}),
    Poison(
        name="fields that are the node's",
        system={
            "receipt_handle": "r",
            "delivery_attempt": -7,
            "queue_id": 1 << 30,
            "queue_offset": -(1 << 62),
            "store_host": "s",
        },
    ),
    *LARGE,
)
"""What every node takes, and each library has to get along with."""

_OLD_BODIES: Final[Sequence[bytes]] = (
    *(each.body for each in REFUSED if each.system.get("body_encoding") == _GZIP),
    *PACKED.values(),
)
OLD_COUNT: Final = len(_OLD_BODIES) + 4
"""How many messages of `old_commands` are no good ones."""
OLD_LARGE: Final = 2
"""How many of these are in frames of more than 4 MiB."""


def old_commands(topic: str, good: Sequence[str], queues: int) -> list[bytes]:
    """Return commands as doors of versions before would have put them into the log.

    Each has a poison between good ones, as they come when a queue is read.
    """
    count = OLD_COUNT
    commands: list[bytes] = []
    for number in range(count):
        some = good[number::count]
        middle = len(some) // 2
        bodies = [each.encode() for each in some]
        columns: dict[str, Any] = {"tags": [""] * len(bodies), "trace_contexts": [""] * len(bodies)}
        encodings, born_at_ms, host = [Encoding.IDENTITY] * len(bodies), [0] * len(bodies), ""
        bodies.insert(middle, b"odd and old %d" % number)
        for column in columns.values():
            column.insert(middle, "")
        encodings.insert(middle, Encoding.IDENTITY)
        born_at_ms.insert(middle, 0)
        if number < len(_OLD_BODIES):
            bodies[middle], encodings[middle] = _OLD_BODIES[number], Encoding.GZIP
        elif number == len(_OLD_BODIES):
            columns["trace_contexts"][middle] = "t" * 5 * _MIB
        elif number == len(_OLD_BODIES) + 1:
            columns["tags"][middle] = "t" * 5 * _MIB
        elif number == len(_OLD_BODIES) + 2:
            born_at_ms[middle] = -(1 << 60)
        else:
            host = "h" * 65_535
        commands.append(
            encode_produce(
                Columns(
                    message_ids=[""] * len(bodies),
                    bodies=bodies,
                    born_at_ms=born_at_ms,
                    encodings=encodings,
                    **columns,
                ),
                client_id=_OTHER_PROGRAM,
                topic=topic,
                queue_id=number % queues,
                born_host=host,
            )
        )
    return commands
