"""A producer's spool directory, whose files anybody on that machine may have changed."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Hashable, Iterator
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Final

from crc32c import crc32c

from dledger.errors import DledgerError, InvalidArgument
from dledger.files import checked_json
from dledger.files.files import Mode
from dledger.files.memory_files import MemoryFiles
from dledger.spool.format import FILE_HEADER_BYTES
from dledger.spool.identity import SpoolIdentity
from dledger.spool.looking import Look
from dledger.spool.opening import limits_of, open_spool
from dledger.spool.payload import Message, decode_message, encode_message, head_of
from dledger.spool.requeue import ask, take_up
from dledger.spool.spool import Spool
from dledger.types import Record, Typed
from tests.fuzz.mutation import NUMBERS, TEXTS, json_bytes, mutated, nested, spoil
from tests.fuzz.target import Broken, Target

_DIRECTORY: Final = Path("/spool")
_LIMITS: Final = limits_of(1 << 20)
_STAMP: Final = b"stampst!"
_TOKEN: Final = bytes(range(16))
_CRC: Final = struct.Struct("<I")
_IDENTITY: Final[dict[str, object]] = {
    "client_id": "client",
    "stamp": _STAMP.hex(),
    "token": _TOKEN.hex(),
}
_ASKED: Final[dict[str, object]] = {
    "messages": [[2, "p000000000002"], [3, "p000000000003"], [9, ""]]
}


def _message(number: int, client_id: str = "") -> Message:
    return Message(
        topic=f"topic{number % 2}",
        client_id=client_id,
        tried=bool(client_id) and number % 3 == 0,
        record=Record(
            body=b"body %d" % number,
            message_id=f"p{number:012}",
            tag="tag",
            keys=("key",),
            properties={"name": "value"},
            born_at_ms=number,
            typed=Typed(deliver_at_ms=number) if number % 2 else None,
        ),
    )


def _made(client_id: str = "") -> dict[str, bytes]:
    """Return the files of a spool: messages, some of them replayed, refused, and asked back.

    With a client they are a sidecar's, of lanes; and one that was refused went back already.
    """
    files = MemoryFiles()
    spool = _opened(files)
    spool.append([_message(n, client_id) for n in range(1, 7)])
    chunk = spool.read(max_records=3, max_bytes=1 << 20)
    assert chunk is not None
    spool.reject([(one, "refused") for one in reversed(chunk.messages)])
    spool.advance(chunk)
    if client_id:
        ask(files, _DIRECTORY, [(1, "p000000000001")])
        take_up(spool, of_lanes=True)
    spool.close()
    ask(files, _DIRECTORY, [(2, "p000000000002")])
    return {
        str(path.relative_to(_DIRECTORY)): bytes(files.contents(path)).rstrip(b"\0")
        for path in list(files._names)
        if path.name != "lock" and not path.name.endswith(".new")
    }


def _opened(files: MemoryFiles) -> Spool:
    return open_spool(
        files,
        _DIRECTORY,
        limits=_LIMITS,
        new_identity=lambda _: SpoolIdentity(client_id="client", stamp=_STAMP, token=_TOKEN),
    )


class SpoolFiles(Target):
    """Files of a spool: what is whole is replayed, what is damaged is named, and so again."""

    name = "spool-files"
    refuses = (DledgerError,)

    def __init__(self) -> None:
        self._files = _made()
        self._of_lanes = _made("a client")

    def draw(self, rng: Random) -> bytes:
        files = dict(rng.choice((self._files, self._of_lanes)))
        for _ in range(rng.randint(1, 2)):
            if not files:
                break
            name = rng.choice(sorted(files))
            if rng.random() < 0.1:
                del files[name]
            else:
                files[name] = _sealed(name, mutated(rng, files[name], 2), rng)
        return json_bytes({name: data.hex() for name, data in files.items()})

    def mutate(self, rng: Random, data: bytes) -> bytes:
        try:
            files = {str(name): bytes.fromhex(text) for name, text in json.loads(data).items()}
        except (ValueError, AttributeError, TypeError):
            return self.draw(rng)
        if files:
            name = rng.choice(sorted(files))
            files[name] = _sealed(name, mutated(rng, files[name], 2), rng)
        return json_bytes({name: data.hex() for name, data in files.items()})

    def feed(self, data: bytes) -> Hashable:
        try:
            found = {str(name): bytes.fromhex(text) for name, text in json.loads(data).items()}
        except (ValueError, AttributeError, TypeError):
            return "no files"
        files = MemoryFiles()
        for name, content in found.items():
            if "\0" not in name and name and ".." not in name:
                files.open(_DIRECTORY / name, Mode.CREATE).pwritev([content], 0)
        _looked_at(files)
        first = _replayed(files)
        if len({sequence for sequence, _ in first}) != len(first):
            raise Broken("a message is replayed twice")
        again = _replayed(files)
        if again != first:
            raise Broken(f"opened again it replays {len(again)} messages, not {len(first)}")
        return len(first)


def _looked_at(files: MemoryFiles) -> None:
    """Look at a spool as ``dledger spool show`` does, whether it can be opened or not."""
    before = {path: bytes(files.contents(path)) for path in files._names}
    for look_at in (
        Look.survey,
        _all_of(Look.waiting),
        _all_of(Look.refusals),
        _all_of(Look.damage),
    ):
        with suppress(DledgerError):
            look_at(Look(files, _DIRECTORY))
    if {path: bytes(files.contents(path)) for path in files._names} != before:
        raise Broken("a look changed it")


def _all_of(part: Callable[[Look], Iterator[object]]) -> Callable[[Look], object]:
    return lambda look: list(part(look))


def _replayed(files: MemoryFiles) -> list[tuple[int, bytes]]:
    """Return what a spool would send, and leave it as a process that was killed does."""
    spool = _opened(files)
    take_up(spool, of_lanes=bool(spool.of_lanes))
    found: list[tuple[int, bytes]] = []
    while (chunk := spool.read(max_records=3, max_bytes=1 << 20)) is not None:
        found += [(one.sequence, encode_message(one.message)) for one in chunk.messages]
    spool.read_rejected()
    files.kill()
    return found


def _sealed(name: str, data: bytes, rng: Random) -> bytes:
    """Return a file with right checksums, mostly: of its header, of its records, of its fields."""
    if rng.random() < 0.1:
        return data
    if name.endswith(".json"):
        asks = name.startswith("requeue/")
        return _sealed_json(_ASKED if asks else _IDENTITY, data, rng)
    if name == "state":
        slots = [data[at : at + 508].ljust(508, b"\0") for at in (0, 4_096)]
        return (slots[0] + _CRC.pack(crc32c(slots[0]))).ljust(4_096, b"\0") + (
            slots[1] + _CRC.pack(crc32c(slots[1]))
        )
    head = data[:304].ljust(304, b"\0")
    records = _sealed_records(data[FILE_HEADER_BYTES:])
    return (head + _CRC.pack(crc32c(head))).ljust(FILE_HEADER_BYTES, b"\0") + records


def _sealed_json(fields: dict[str, object], data: bytes, rng: Random) -> bytes:
    if rng.random() < 0.05:
        return nested(rng).encode()
    try:
        spoilt = spoil(rng, fields, 1)
        return checked_json.encode(rng.choice((1, 2)), spoilt) if isinstance(spoilt, dict) else data
    except (ValueError, TypeError):
        return data


def _sealed_records(data: bytes) -> bytes:
    records, at = bytearray(data), 0
    while at + 32 <= len(records):
        length = int.from_bytes(records[at + 16 : at + 20], "little")
        payload = records[at + 32 : at + 32 + length]
        if len(payload) < length:
            break
        records[at + 20 : at + 24] = _CRC.pack(crc32c(bytes(payload)))
        records[at + 28 : at + 32] = _CRC.pack(crc32c(bytes(records[at : at + 28])))
        at += 32 + length + (-length % 8)
    return bytes(records)


class SpoolMessages(Target):
    """The payload of an intact spool record: the message that it is, or none."""

    name = "spool-messages"
    refuses = (ValueError, InvalidArgument)

    def draw(self, rng: Random) -> bytes:
        message = Message(
            topic=rng.choice(TEXTS),
            queue_id=rng.choice((-1, 0, 2**31 - 1)),
            reason=rng.choice(TEXTS),
            client_id=rng.choice(TEXTS),
            lane=rng.choice((0, 1, 2**32 - 1)),
            lane_sequence=rng.choice((0, 1, 2**64 - 1)),
            tried=rng.random() < 0.5,
            went_back=rng.random() < 0.2,
            record=Record(
                body=rng.randbytes(rng.randrange(5)),
                message_id=rng.choice(TEXTS),
                tag=rng.choice(TEXTS),
                keys=tuple(rng.choice(TEXTS) for _ in range(rng.randrange(3))),
                properties={rng.choice(TEXTS): rng.choice(TEXTS) for _ in range(rng.randrange(3))},
                born_at_ms=rng.choice([n for n in NUMBERS if -(2**63) <= n < 2**63]),
                typed=rng.choice((None, Typed(message_group=rng.choice(TEXTS), deliver_at_ms=7))),
            ),
        )
        made = encode_message(message)
        return mutated(rng, made, 2) if rng.random() < 0.7 else made

    def feed(self, data: bytes) -> Hashable:
        message = decode_message(data)
        if head_of(data)[:4] != (
            message.topic,
            message.record.born_at_ms,
            message.client_id,
            message.lane,
        ):
            raise Broken("it is counted under another topic than it is sent to")
        if decode_message(encode_message(message)) != message:
            raise Broken("written again it is another message")
        return len(message.record.keys), len(message.record.properties)
