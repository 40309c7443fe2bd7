"""A client program that writes messages, notes all that a group stores, and compares it later.

Runs in a pod (from a ConfigMap, in the node's image) or on the host. Every message counts with its
place (topic, queue, offset) and everything else that a reader gets: Raft index, id, body, tag,
keys, properties, both times. Each command prints one JSON object.

    python bookkeeper.py write --endpoint orders:8081 --topic demo --messages 100000
    python bookkeeper.py note --endpoint orders:8081 --notes /tmp/notes
    python bookkeeper.py compare --endpoint orders:8081 --notes /tmp/notes

``--without TOPIC`` leaves out what is written to one topic meanwhile.

exit codes: 0 done, and nothing differs; 1 something differs, or the group did not answer; 2 usage
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import json
import random
import re
import sys
import time
from collections.abc import AsyncIterator
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Any, TypeAlias

from dledger.client import Client, Record, StoredRecord
from dledger.errors import DledgerError, InvalidArgument, Unavailable

BATCH = 256
SIZE_BYTES = 1024
WINDOW = 4
KEYS = 5000
TAGS = ("new", "paid", "sent")
SETTLE_S = 30.0
RETRY_S = 0.5
OUTSIDE = re.compile(r"is outside \[(\d+), \d+\]")

Place: TypeAlias = tuple[str, int, int]
"""Topic, queue, offset."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Note:
    """What is remembered of one message beside its place; *body* is its SHA-256 in hex."""

    index: int
    message_id: str
    body: str
    tag: str
    keys: tuple[str, ...]
    properties: tuple[tuple[str, str], ...]
    born_at_ms: int
    stored_at_ms: int


Notes: TypeAlias = dict[Place, Note]


def main() -> int:
    """Run one command."""
    args = parse_arguments()
    run = {"write": write, "note": note, "compare": compare}[args.command]
    try:
        result = asyncio.run(run(args))
    except DledgerError as error:
        result = {"ok": False, "error": f"{type(error).__name__}: {error}"}
    print(json.dumps(result), flush=True)
    return 0 if result["ok"] else 1


def parse_arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    for name in ("write", "note", "compare"):
        command = commands.add_parser(name)
        command.add_argument("--endpoint", required=True, help="HOST:PORT")
        if name == "write":
            command.add_argument("--messages", type=int, required=True)
            command.add_argument("--topic", required=True)
        else:
            command.add_argument("--notes", type=Path, required=True)
            command.add_argument("--without", default="", help="leave out this topic")
    return parser.parse_args()


# -- write -----------------------------------------------------------------------------------------


async def write(args: argparse.Namespace) -> dict[str, Any]:
    """Append messages in batches, several batches under way at once; the leader chooses queues."""
    began_s = time.monotonic()
    batches = iter(range(0, args.messages, BATCH))
    acked = 0

    async def writer(client: Client) -> None:
        nonlocal acked
        for first in batches:
            numbers = range(first, min(first + BATCH, args.messages))
            records = [message(number) for number in numbers]
            appended = await client.append(args.topic, records)
            acked += len(appended.offsets)

    async with Client(args.endpoint) as client:
        await asyncio.gather(*(writer(client) for _ in range(WINDOW)))
    seconds = time.monotonic() - began_s
    return {"ok": True, "acked": acked, "seconds": round(seconds, 1), "perSecond": acked // seconds}


def message(number: int) -> Record:
    """Return the message of a number; always the same, but for its id."""
    return Record(
        body=random.Random(number).randbytes(SIZE_BYTES),
        tag=TAGS[number % len(TAGS)],
        keys=(f"order-{number % KEYS}",),
        properties={"number": str(number), "größe": f"{SIZE_BYTES} Bytes"},
        born_at_ms=time.time_ns() // 1_000_000,
    )


# -- note ------------------------------------------------------------------------------------------


async def note(args: argparse.Namespace) -> dict[str, Any]:
    """Write down every message that was acknowledged before, and is still kept."""
    async with Client(args.endpoint) as client:
        found = await everything(client, args.without)
    with args.notes.open("w", encoding="utf-8") as file:
        for place, noted in found.items():
            file.write(json.dumps([place, astuple(noted)]) + "\n")
    queues = {place[:2] for place in found}
    newest_ms = max((noted.stored_at_ms for noted in found.values()), default=0)
    return {"ok": True, "messages": len(found), "queues": len(queues), "newestMs": newest_ms}


def read_notes(path: Path) -> Notes:
    """Return what `note` wrote."""
    notes: Notes = {}
    with path.open(encoding="utf-8") as file:
        for line in file:
            (topic, queue, offset), values = json.loads(line)
            index, message_id, body, tag, keys, properties, born_at_ms, stored_at_ms = values
            notes[topic, queue, offset] = Note(
                index=index,
                message_id=message_id,
                body=body,
                tag=tag,
                keys=tuple(keys),
                properties=tuple((name, value) for name, value in properties),
                born_at_ms=born_at_ms,
                stored_at_ms=stored_at_ms,
            )
    return notes


async def everything(client: Client, without: str) -> Notes:
    """Return every message that the group keeps, but for those of one topic."""
    return {place: noted async for place, noted in _every_message(client, without)}


async def _every_message(client: Client, without: str) -> AsyncIterator[tuple[Place, Note]]:
    for topic in await client.topics():
        for queue in range(topic.queues if topic.name != without else 0):
            first = await _first_offset(client, topic.name, queue)
            async for stored in client.read(
                topic.name, queue, start_offset=first, linearizable=True
            ):
                yield (topic.name, queue, stored.offset), noted_of(stored)


async def _first_offset(client: Client, topic: str, queue: int) -> int:
    """Return the oldest offset that a queue keeps; only the refusal of an older one tells it."""
    try:
        async for _ in client.read(topic, queue, max_records=1, linearizable=True):
            break
    except InvalidArgument as error:
        if found := OUTSIDE.search(str(error)):
            return int(found[1])
        raise
    return 0


def noted_of(stored: StoredRecord) -> Note:
    """Return what is remembered of a message."""
    record = stored.record
    return Note(
        index=stored.index,
        message_id=record.message_id,
        body=hashlib.sha256(record.body).hexdigest(),
        tag=record.tag,
        keys=record.keys,
        properties=tuple(sorted(record.properties.items())),
        born_at_ms=record.born_at_ms,
        stored_at_ms=stored.stored_at_ms,
    )


# -- compare ---------------------------------------------------------------------------------------


async def compare(args: argparse.Namespace) -> dict[str, Any]:
    """Compare what is stored now with the notes, then write one message after the last."""
    notes = read_notes(args.notes)
    deadline_s = time.monotonic() + SETTLE_S
    async with Client(args.endpoint) as client:
        while True:
            try:
                found = await everything(client, args.without)
                differences = differences_of(notes, found)
            except Unavailable:
                if time.monotonic() > deadline_s:
                    raise
            else:
                if not differences["missing"] or time.monotonic() > deadline_s:
                    break
            await asyncio.sleep(RETRY_S)
        goes_on = await _goes_on(client, notes)
    ok = goes_on and not any(differences[kind] for kind in ("missing", "changed", "extra"))
    return {"ok": ok, "expected": len(notes), "found": len(found), **differences, "goesOn": goes_on}


def differences_of(notes: Notes, found: Notes) -> dict[str, Any]:
    """Count places that lack their message, have another one, or should be empty."""
    missing = sorted(notes.keys() - found.keys())
    extra = sorted(found.keys() - notes.keys())
    changed = sorted(place for place in notes.keys() & found.keys() if notes[place] != found[place])
    return {
        "missing": len(missing),
        "changed": len(changed),
        "extra": len(extra),
        "examples": [*missing[:3], *changed[:3], *extra[:3]],
    }


async def _goes_on(client: Client, notes: Notes) -> bool:
    """Whether a new message takes the place after the last of its queue, with a higher index."""
    topic, queue, last = max(notes)
    appended = await client.append(topic, [b"one more"], queue_id=queue)
    newest = max(noted.index for noted in notes.values())
    return appended.offsets == (last + 1,) and appended.index > newest


if __name__ == "__main__":
    sys.exit(main())
