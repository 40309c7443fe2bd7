r"""A client program that consumes as a consumer group, and goes on with it in a restored group.

Runs in a pod (from a ConfigMap, in the node's image, beside `bookkeeper.py`) or on the host, and
calls a broker as an SDK does. Each command prints one JSON object.

    python subscriber.py take --endpoint orders:8081 --topic demo --messages 500 --taken /tmp/taken
    python subscriber.py resume --endpoint orders:8081 --topic demo --taken /tmp/taken \
        --notes /tmp/notes --probe probe

``take`` adds the ids of the messages that it acknowledged to a file. ``resume`` begins before the
group is there and ends when every message of the notes that is not in that file was delivered; it
tells when the first one came, and when the first message was acknowledged to a producer.

exit codes: 0 done as asked; 1 not all came, or some that should not; 2 usage
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc.aio

from dledger.client import Client
from dledger.errors import DledgerError
from e2e.harness.bookkeeper import read_notes
from e2e.harness.rocketmq_calls import Consumer, channel_to, code_name

GROUP = "readers"
INVISIBLE_S = 10.0
"""How long a message that was received is kept from others: then it comes again."""
WAIT_S = 1.0
ONE_S = 2.0
"""Of a single try, while the group is not there."""
RETRY_S = 0.2
DEADLINE_S = 300.0
LIMIT = 32


def main() -> int:
    """Run one command."""
    args = parse_arguments()
    run = {"take": take, "resume": resume}[args.command]
    result = asyncio.run(run(args))
    print(json.dumps(result), flush=True)
    return 0 if result["ok"] else 1


def parse_arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    for name in ("take", "resume"):
        command = commands.add_parser(name)
        command.add_argument("--endpoint", required=True, help="HOST:PORT")
        command.add_argument("--topic", required=True)
        command.add_argument("--taken", type=Path, required=True)
        if name == "take":
            command.add_argument("--messages", type=int, required=True)
            command.add_argument("--hold", action="store_true", help="acknowledge none")
        else:
            command.add_argument("--notes", type=Path, required=True)
            command.add_argument("--probe", required=True, help="the topic to write to")
    return parser.parse_args()


# -- take ------------------------------------------------------------------------------------------


async def take(args: argparse.Namespace) -> dict[str, Any]:
    """Receive so many messages and acknowledge them, or hold them."""
    taken: list[str] = []
    deadline_s = time.monotonic() + DEADLINE_S
    async with channel_to(args.endpoint) as channel:
        consumer = Consumer(channel, "subscriber", args.topic, GROUP)
        while len(taken) < args.messages and time.monotonic() < deadline_s:
            limit = min(LIMIT, args.messages - len(taken))
            messages = await consumer.receive(limit=limit, wait_s=WAIT_S, invisible_s=INVISIBLE_S)
            if args.hold:
                taken += [id_of(message) for message in messages]
            elif messages:
                taken += accepted(await consumer.ack(messages))
    if not args.hold:
        with args.taken.open("a", encoding="utf-8") as file:
            file.writelines(f"{each}\n" for each in taken)
    return {"ok": len(taken) == args.messages, "taken": len(taken)}


def accepted(answer: Any) -> list[str]:
    """Return the ids of the messages whose acknowledgement a broker took."""
    return [each.message_id for each in answer.entries if code_name(each) == "OK"]


def id_of(message: Any) -> str:
    """Return a message's id."""
    return str(message.system_properties.message_id)


# -- resume ----------------------------------------------------------------------------------------


@dataclass
class Delivered:
    """What came so far; when the first one did, Unix milliseconds."""

    ids: set[str] = field(default_factory=set)
    first_at_ms: int = 0

    def add(self, messages: list[Any]) -> None:
        """Note a delivery."""
        self.first_at_ms = self.first_at_ms or now_ms()
        self.ids |= {id_of(message) for message in messages}


async def resume(args: argparse.Namespace) -> dict[str, Any]:
    """Wait for the group; tell when it served, and whether the right messages came."""
    noted = {
        note.message_id for place, note in read_notes(args.notes).items() if place[0] == args.topic
    }
    taken = set(args.taken.read_text("utf-8").split())
    delivered = Delivered()
    async with asyncio.timeout(DEADLINE_S) as limit, asyncio.TaskGroup() as tasks:
        writing = tasks.create_task(first_ack(args.endpoint, args.probe))
        tasks.create_task(deliver(args, noted - taken, delivered, limit))
    found = differences_of(noted, taken, delivered.ids)
    return {
        "ok": not any(found.values()),
        "expected": len(noted - taken),
        **found,
        "receivedAtMs": delivered.first_at_ms,
        "ackedAtMs": writing.result(),
    }


def differences_of(noted: set[str], taken: set[str], delivered: set[str]) -> dict[str, int]:
    """Count what should have come and did not, came though taken before, or should not be there."""
    return {
        "lost": len(noted - taken - delivered),
        "again": len(delivered & taken),
        "foreign": len(delivered - noted),
    }


async def first_ack(endpoint: str, topic: str) -> int:
    """Write until a message is acknowledged; return when, Unix milliseconds."""
    while True:
        try:
            # A new connection each time: a name that is not there yet is asked for again at once.
            async with Client(endpoint, timeout_s=ONE_S) as client:
                await client.append(topic, [b"here again"])
                return now_ms()
        except DledgerError:
            await asyncio.sleep(RETRY_S)


async def deliver(
    args: argparse.Namespace, expected: set[str], delivered: Delivered, limit: asyncio.Timeout
) -> None:
    """Receive and acknowledge until all that is expected came, and nothing more comes."""
    while True:
        try:
            async with channel_to(args.endpoint) as channel:
                consumer = Consumer(channel, "subscriber", args.topic, GROUP)
                while messages := await consumer.receive(limit=LIMIT, wait_s=WAIT_S):
                    delivered.add(messages)
                    await consumer.ack(messages)
        except (grpc.aio.AioRpcError, RuntimeError):
            await asyncio.sleep(RETRY_S)
        else:
            if expected <= delivered.ids or is_late(limit):
                return


def is_late(limit: asyncio.Timeout) -> bool:
    """Whether there is hardly any time left."""
    ends_s = limit.when() or 0.0
    return asyncio.get_running_loop().time() > ends_s - 10 * WAIT_S


def now_ms() -> int:
    """Return the wall clock."""
    return time.time_ns() // 1_000_000


if __name__ == "__main__":
    sys.exit(main())
