"""A spool's directory as version 1 of its format had it: written here by hand."""

from __future__ import annotations

import struct
from collections.abc import Sequence

from crc32c import crc32c

from dledger.files import checked_json
from dledger.files.files import Mode
from dledger.files.memory_files import MemoryFiles
from dledger.spool.payload import Message
from tests.spool.spool_harness import CLIENT, DIR, STAMP


def _sealed(fields: bytes) -> bytes:
    return fields + struct.pack("<I", crc32c(fields))


def payload_1(message: Message) -> bytes:
    """Return the payload of a message."""
    record = message.record
    pairs = [text for item in record.properties.items() for text in item]
    texts = [message.topic, record.message_id, record.tag, message.reason, *record.keys, *pairs]
    strings = [text.encode() for text in texts]
    counts = (len(record.keys), len(record.properties))
    head = struct.pack("<qiHH", record.born_at_ms, message.queue_id, *counts)
    return head + b"".join([struct.pack("<I", len(s)) for s in strings] + strings) + record.body


def record_1(message: Message, sequence: int) -> bytes:
    """Return the record of a message."""
    payload = payload_1(message)
    head = struct.pack("<8sQII4x", STAMP, sequence, len(payload), crc32c(payload))
    return _sealed(head) + payload + bytes(-len(payload) % 8)


def write_spool(files: MemoryFiles, spooled: Sequence[Message], *, replayed: int = 0) -> None:
    """Write a directory with these messages, the first of them replayed."""
    head = struct.pack("<8sIIQ8s256s", b"DLGRSPL\0", 1, len(CLIENT), 1, STAMP, CLIENT.encode())
    records = b"".join(record_1(one, number) for number, one in enumerate(spooled, start=1))
    slot = struct.pack("<8sI4xQQQ468x", b"DLGRSPS\0", 1, 7, replayed, len(spooled))
    identity = checked_json.encode(1, {"client_id": CLIENT, "stamp": STAMP.hex()})
    contents = {
        "00000000000000000001.spool": _sealed(head).ljust(4096, b"\0") + records.ljust(8192, b"\0"),
        "state": _sealed(slot).ljust(8192, b"\0"),
        "spool.json": identity,
    }
    files.make_dirs(DIR)
    for name, data in contents.items():
        file = files.open(DIR / name, Mode.CREATE)
        file.pwritev([data], 0)
        file.fdatasync()
        file.close()
    files.fsync_dir(DIR)
