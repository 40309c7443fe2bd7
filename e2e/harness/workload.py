"""A client program over the unmodified RocketMQ Python SDK: produce, consume, compare.

Runs in a pod (from a ConfigMap, in an image of its own: the node's and the SDK) or on the host. Two
processes: this one produces with several threads, each sending its own numbered sequence one
message at a time; the other consumes and acknowledges. At the end the stored log is read through
`dledger.client` as well, since only that shows positions: a message must be there once, and each
sender's messages in the order it sent them. Prints one JSON object a line: progress every second,
and at the end a summary. SIGTERM ends the producing early.

    python workload.py --endpoint orders:8081 --topic demo --messages 20000
    python workload.py --endpoint 127.0.0.1:18081 --topic t --seconds 30 --consumer simple

exit codes: 0 every acknowledged message was read back, and there were some; 1 not; 2 wrong usage
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

os.environ.setdefault("HOME", tempfile.gettempdir())

from rocketmq.v5.client import ClientConfiguration, Credentials
from rocketmq.v5.consumer import PushConsumer, SimpleConsumer
from rocketmq.v5.consumer.push.message_listener import ConsumeResult, MessageListener
from rocketmq.v5.model import FilterExpression, Message
from rocketmq.v5.producer import Producer

from dledger.client import Client

INVISIBLE_S = 15
SIZE_BYTES = 256
DRAIN_S = 120.0
"""How long one more delivery is waited for, at the end."""
PROGRESS_S = 1.0
RECEIVERS = 4
SILENCE_S = 0.05
"""The summary lists the silences that were longer: when each ended, and its milliseconds."""
MOST_SILENCES = 200


def main() -> int:
    """Run the producer side, or with ``--role consumer`` the consumer side."""
    args = parse_arguments()
    return consume(args) if args.role == "consumer" else produce_and_compare(args)


def parse_arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--endpoint", required=True, help="HOST:PORT[;HOST:PORT...]")
    parser.add_argument("--topic", required=True)
    parser.add_argument("--messages", type=int, default=0, help="stop after this many acks")
    parser.add_argument("--seconds", type=float, default=0, help="or after this long")
    parser.add_argument("--threads", type=int, default=8)
    parser.add_argument("--consumer", choices=("push", "simple", "none"), default="push")
    parser.add_argument("--run-id", default="", help="tells this run's messages from others'")
    parser.add_argument("--expect", default="", help="also expect the acks listed in this file")
    parser.add_argument("--print-acks", action="store_true", help="print every ack at the end")
    parser.add_argument("--role", choices=("producer", "consumer"), default="producer")
    parser.add_argument("--received-file", default="")
    args = parser.parse_args()
    args.group = f"{args.topic}-readers"
    args.run_id = args.run_id or f"{os.getpid():x}-{time.time_ns():x}"
    if args.role == "producer" and not (args.messages or args.seconds or args.expect):
        parser.error("give --messages, --seconds or --expect")
    return args


def configuration(args: argparse.Namespace) -> Any:
    """Return the SDK's client configuration."""
    return ClientConfiguration(args.endpoint, Credentials())


def say(**fields: Any) -> None:
    """Print one JSON line, in one piece: both processes write to the same log."""
    sys.stdout.write(json.dumps(fields) + "\n")
    sys.stdout.flush()


# -- produce ---------------------------------------------------------------------------------------


@dataclass
class Acks:
    """What was acknowledged, when, and what failed; shared by the sender threads."""

    keys: list[str] = field(default_factory=list)
    failed: int = 0
    last_error: str = ""
    first_ack_s: float = 0.0
    last_ack_s: float = 0.0
    gap_s: float = 0.0
    gap_ended_unix_ms: int = 0
    silences: list[tuple[int, int]] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, key: str) -> None:
        """Note one acknowledgement, and whether it ends the longest silence so far."""
        with self.lock:
            now_s = time.monotonic()
            self.first_ack_s = self.first_ack_s or now_s
            silent_s = now_s - self.last_ack_s if self.last_ack_s else 0.0
            if silent_s > self.gap_s:
                self.gap_s = silent_s
                self.gap_ended_unix_ms = unix_ms()
            if silent_s > SILENCE_S:
                self.silences.append((unix_ms(), round(silent_s * 1000)))
            self.last_ack_s = now_s
            self.keys.append(key)

    def fail(self, error: Exception) -> None:
        """Note a send whose outcome the SDK could not learn."""
        with self.lock:
            self.failed += 1
            self.last_error = f"{type(error).__name__}: {error}"[:300]


def produce_and_compare(args: argparse.Namespace) -> int:
    """Produce while a second process consumes; compare, print the summary."""
    acks = Acks()
    expected = set(Path(args.expect).read_text().split()) if args.expect else set()
    with tempfile.TemporaryDirectory() as scratch:
        received_file = Path(scratch, "received")
        received_file.touch()
        consumer = start_consumer(args, received_file)
        try:
            if args.messages or args.seconds:
                produce(args, acks)
            if args.print_acks:
                say(acks=acks.keys)
            wanted = expected | set(acks.keys)
            received = drain(args, wanted, received_file)
        finally:
            if consumer is not None:
                consumer.terminate()
                consumer.wait(30)
    stored = asyncio.run(read_log(args))
    summary = compare(args, acks, wanted, received, stored)
    say(**summary)
    whole = summary["lost"] == summary["duplicates"] == summary["outOfOrder"] == 0
    return 0 if whole and summary["expected"] > 0 else 1


def start_consumer(args: argparse.Namespace, received_file: Path) -> subprocess.Popen[bytes] | None:
    """Start the second process."""
    if args.consumer == "none":
        return None
    own = [argument for argument in sys.argv[1:] if argument]
    extra = ["--role", "consumer", "--received-file", str(received_file)]
    return subprocess.Popen([sys.executable, __file__, *own, *extra, "--run-id", args.run_id])


def produce(args: argparse.Namespace, acks: Acks) -> None:
    """Send from every thread until the count or the time is reached; say progress."""
    producer = Producer(configuration(args), (args.topic,))
    startup(producer)
    deadline_s = time.monotonic() + args.seconds if args.seconds else float("inf")
    limit = args.messages or sys.maxsize
    stopped = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stopped.set())

    def send_all(thread: int) -> None:
        sequence = 0
        while len(acks.keys) < limit and time.monotonic() < deadline_s and not stopped.is_set():
            key = f"{args.run_id}/{thread}/{sequence}"
            sequence += 1
            try:
                producer.send(message(args, key))
            except Exception as error:  # noqa: BLE001 - the SDK raises all kinds
                acks.fail(error)
            else:
                acks.add(key)

    threads = [threading.Thread(target=send_all, args=(n,)) for n in range(args.threads)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        say(progress="produce", acked=len(acks.keys), failed=acks.failed, atMs=unix_ms())
        for thread in threads:
            thread.join(PROGRESS_S / args.threads)
    producer.shutdown()


def startup(client: Any) -> None:
    """Start an SDK client; the group may be in an election just now."""
    deadline_s = time.monotonic() + 60
    while True:
        try:
            client.startup()
            return
        except Exception:
            if time.monotonic() > deadline_s:
                raise
            time.sleep(0.5)


def message(args: argparse.Namespace, key: str) -> Any:
    """Return an SDK message whose body starts with its key."""
    one = Message()
    one.topic = args.topic
    one.body = key.encode().ljust(SIZE_BYTES, b".")
    one.tag = "workload"
    one.keys = key
    return one


def unix_ms() -> int:
    """Return the wall clock."""
    return time.time_ns() // 1_000_000


# -- consume ---------------------------------------------------------------------------------------


class Listener(MessageListener):  # type: ignore[misc]
    """Writes one line a delivery: key and delivery attempt."""

    def __init__(self, file: Any) -> None:
        """Write to *file*, which is shared by the SDK's threads."""
        self._file = file
        self._lock = threading.Lock()

    def consume(self, message: Any) -> Any:
        """Note and acknowledge."""
        self.note(message)
        return ConsumeResult.SUCCESS

    def note(self, message: Any) -> None:
        """Write the delivery down before it is acknowledged."""
        key = key_of(message.body)
        with self._lock:
            self._file.write(f"{key} {message.delivery_attempt}\n")
            self._file.flush()


def consume(args: argparse.Namespace) -> int:
    """Consume until terminated."""
    stop = threading.Event()
    with Path(args.received_file).open("a") as file:
        listener = Listener(file)
        if args.consumer == "push":
            consumer = PushConsumer(
                configuration(args),
                args.group,
                listener,
                {args.topic: FilterExpression("workload")},
            )
            startup(consumer)
            stop.wait()
        else:
            consume_simple(args, listener)
    return 0


def consume_simple(args: argparse.Namespace, listener: Listener) -> None:
    """Receive in a few threads, acknowledge each batch with several, for ever."""
    consumer = SimpleConsumer(
        configuration(args),
        args.group,
        {args.topic: FilterExpression("workload")},
        await_duration=2,
    )
    startup(consumer)

    def loop() -> None:
        while True:
            try:
                batch = consumer.receive(32, INVISIBLE_S)
                for one in batch:
                    listener.note(one)
                list(acks.map(consumer.ack, batch))
            except Exception as error:  # noqa: BLE001 - the SDK raises all kinds
                say(progress="consume", error=f"{type(error).__name__}: {error}"[:200])
                time.sleep(0.2)

    acks = ThreadPoolExecutor(args.threads)
    threads = [threading.Thread(target=loop) for _ in range(RECEIVERS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


# -- compare ---------------------------------------------------------------------------------------


class Received:
    """The deliveries so far, read from the consumer's file as it grows.

    A message that was stored twice is delivered twice with attempt 1; a delivery with a higher
    attempt repeats one whose acknowledgement did not arrive, as at-least-once allows.
    """

    def __init__(self, path: Path) -> None:
        """Start reading *path*."""
        self._file = path.open()
        self._rest = ""
        self.copies: dict[str, int] = {}
        self.deliveries = 0
        self.redelivered = 0

    def read(self) -> None:
        """Take what was written since."""
        lines = (self._rest + self._file.read()).split("\n")
        self._rest = lines.pop()
        for line in lines:
            key, attempt = line.split()
            self.deliveries += 1
            self.redelivered += attempt != "1"
            self.copies[key] = self.copies.get(key, 0) + (attempt == "1")


def drain(args: argparse.Namespace, expected: set[str], received_file: Path) -> Received:
    """Wait until everything expected was received, or until nothing more comes."""
    received = Received(received_file)
    before, deadline_s = -1, 0.0
    while args.consumer != "none":
        received.read()
        if received.deliveries > before:
            before, deadline_s = received.deliveries, time.monotonic() + DRAIN_S
        missing = len(expected - received.copies.keys())
        say(progress="drain", received=len(received.copies), missing=missing)
        if not missing or time.monotonic() > deadline_s:
            time.sleep(1)  # a duplicate may still be on its way
            received.read()
            break
        time.sleep(PROGRESS_S)
    return received


async def read_log(args: argparse.Namespace) -> dict[int, list[str]]:
    """Return the keys of each queue in the order of the log.

    A linearizable read: one node is asked, and what was acknowledged last may not be there yet.
    """
    endpoint = args.endpoint.partition(";")[0]
    async with Client(endpoint) as client:
        queues = next(t.queues for t in await client.topics() if t.name == args.topic)
        return {
            queue: [
                key_of(stored.record.body)
                async for stored in client.read(args.topic, queue, linearizable=True)
            ]
            for queue in range(queues)
        }


def key_of(body: bytes) -> str:
    """Return the key that a body starts with."""
    return body.rstrip(b".").decode()


def compare(
    args: argparse.Namespace,
    acks: Acks,
    wanted: set[str],
    received: Received,
    stored: dict[int, list[str]],
) -> dict[str, Any]:
    """Return the summary: what was acknowledged against what was read back."""
    copies = Counter(key for keys in stored.values() for key in keys)
    delivered = received.copies.keys() if args.consumer != "none" else copies.keys()
    lost = sorted(key for key in wanted if key not in delivered or key not in copies)
    delivered_twice = sum(max(0, count - 1) for count in received.copies.values())
    return {
        "summary": True,
        "acked": len(acks.keys),
        "expected": len(wanted),
        "failed": acks.failed,
        "lastError": acks.last_error,
        "stored": sum(copies.values()),
        "received": len(received.copies),
        "deliveries": received.deliveries,
        "redelivered": received.redelivered,
        "lost": len(lost),
        "lostExamples": lost[:5],
        "duplicates": sum(copies.values()) - len(copies) + delivered_twice,
        "outOfOrder": out_of_order(stored),
        "gapMs": round(acks.gap_s * 1000),
        "gapEndedAtMs": acks.gap_ended_unix_ms,
        "silences": acks.silences[-MOST_SILENCES:],
        "seconds": round(acks.last_ack_s - acks.first_ack_s, 2),
    }


def out_of_order(stored: dict[int, list[str]]) -> int:
    """Count messages that their queue has behind a later one of the same sender."""
    count = 0
    for keys in stored.values():
        newest: dict[str, int] = {}
        for key in keys:
            sender, _, sequence = key.rpartition("/")
            count += int(sequence) < newest.get(sender, -1)
            newest[sender] = max(int(sequence), newest.get(sender, -1))
    return count


if __name__ == "__main__":
    sys.exit(main())
