"""A client program that writes a table of keys again and again, and reads it back from nothing.

Runs in a pod (from a ConfigMap, in the node's image) or on the host. Each command prints one JSON
object.

    python keyed_table.py write --endpoint orders:8081 --topic prices --keys 500 --versions 4
    python keyed_table.py read --endpoint orders:8081 --topic prices --keys 500 --version 4

``write`` sends each key's versions in their order, from ``--first`` on. ``read`` takes the whole
topic twice, each time as somebody who was never there: by `dledger.client` from offset 0, and as a
new consumer group by RocketMQ's protocol. It says how many values each got, how many keys had more
than one, and how many had another than the newest.

exit codes: 0 done, and one value a key, the newest; 1 not so, or the group did not answer; 2 usage
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
import uuid
from collections.abc import Iterable
from typing import Any

from dledger.client import Client, Record
from dledger.errors import DledgerError
from e2e.harness.rocketmq_calls import Consumer, channel_to

LANES = 32
FILLER = "x" * 1000
"""So that some thousand messages are more than a small segment."""
IDLE_S = 5.0
"""A consumer that gets nothing for so long has all there is."""
INVISIBLE_S = 60.0


def main() -> int:
    """Run one command."""
    args = parse_arguments()
    run = {"write": write, "read": read}[args.command]
    try:
        result = asyncio.run(run(args))
    except DledgerError as error:
        result = {"ok": False, "error": str(error)}
    print(json.dumps(result), flush=True)
    return 0 if result["ok"] else 1


def parse_arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    for name in ("write", "read"):
        command = commands.add_parser(name)
        command.add_argument("--endpoint", required=True)
        command.add_argument("--topic", required=True)
        command.add_argument("--keys", type=int, required=True)
        if name == "write":
            command.add_argument("--first", type=int, default=1)
            command.add_argument("--versions", type=int, required=True)
        else:
            command.add_argument("--version", type=int, required=True)
    return parser.parse_args()


async def write(args: argparse.Namespace) -> dict[str, Any]:
    """Send each key's versions, one after the other, many keys at once."""
    last = args.first + args.versions
    async with Client(args.endpoint, timeout_s=60.0) as client:
        lanes = asyncio.Semaphore(LANES)

        async def send(key: str) -> None:
            for version in range(args.first, last):
                body = f"{key} {version} {FILLER}".encode()
                async with lanes:
                    await client.append(args.topic, [Record(body=body, keys=(key,))])

        await asyncio.gather(*(send(f"key-{n}") for n in range(args.keys)))
    return {"ok": True, "sent": args.keys * args.versions}


async def read(args: argparse.Namespace) -> dict[str, Any]:
    """Read the topic from nothing, twice."""
    wanted = {f"key-{n}": args.version for n in range(args.keys)}
    by_client = _judge(await _by_client(args), wanted)
    by_consumer = _judge(await _by_consumer(args), wanted)
    ok = by_client["ok"] and by_consumer["ok"]
    return {"ok": ok, "client": by_client, "consumer": by_consumer}


async def _by_client(args: argparse.Namespace) -> list[bytes]:
    async with Client(args.endpoint, timeout_s=60.0) as client:
        (topic,) = [one for one in await client.topics() if one.name == args.topic]
        return [
            stored.record.body
            for queue in range(topic.queues)
            async for stored in client.read(args.topic, queue, start_offset=0)
        ]


async def _by_consumer(args: argparse.Namespace) -> list[bytes]:
    bodies: list[bytes] = []
    async with channel_to(args.endpoint) as channel:
        consumer = Consumer(channel, "reader", args.topic, f"fresh-{uuid.uuid4()}")
        idle_s = time.monotonic() + IDLE_S
        while time.monotonic() < idle_s:
            messages = await consumer.receive(wait_s=1.0, invisible_s=INVISIBLE_S)
            if messages:
                await consumer.ack(messages)
                idle_s = time.monotonic() + IDLE_S
            bodies += [bytes(message.body) for message in messages]
    return bodies


def _judge(bodies: Iterable[bytes], wanted: dict[str, int]) -> dict[str, Any]:
    found: dict[str, list[int]] = {}
    for body in bodies:
        key, version, _ = body.decode().split(" ", 2)
        found.setdefault(key, []).append(int(version))
    again = sum(len(versions) > 1 for versions in found.values())
    older = sum(max(found.get(key, [0])) != newest for key, newest in wanted.items())
    values = sum(map(len, found.values()))
    ok = (again, older, values) == (0, 0, len(wanted))
    return {"ok": ok, "values": values, "again": again, "older": older}


if __name__ == "__main__":
    sys.exit(main())
