"""One session of the unmodified RocketMQ Python SDK; run as a program, prints JSON.

The SDK runs its own event loop in a thread and logs to the home directory, so the tests give it a
process and a home of its own. ``python sdk_session.py STORY ENDPOINTS`` where ENDPOINTS are
``host:port`` joined by semicolons.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections import Counter
from typing import Any

from rocketmq import (
    ClientConfiguration,
    ConsumeResult,
    Credentials,
    FilterExpression,
    Message,
    MessageListener,
    Producer,
    PushConsumer,
    SimpleConsumer,
)

DELIVERY_UNIT_MS = 1000
"""The SDK takes a delivery time in seconds, and tells it in milliseconds."""


def _message(topic: str, body: bytes, tag: str = "") -> Any:
    message = Message()
    message.topic = topic
    message.body = body
    if tag:
        message.tag = tag
    message.keys = "key"
    message.add_property("name", "value")
    return message


def _produce(configuration: Any, count: int, *, tls: bool = False) -> Any:
    producer = Producer(configuration, ("t",), tls_enable=tls)
    producer.startup()
    for number in range(count):
        tag = "even" if number % 2 == 0 else "odd"
        producer.send(_message("t", f"{number}".encode(), tag))
    return producer


def simple(configuration: Any) -> dict[str, Any]:
    """Produce 40 messages; a simple consumer takes the even ones and acks them."""
    producer = _produce(configuration, 40)
    consumer = SimpleConsumer(
        configuration, "simple", {"t": FilterExpression("even")}, await_duration=1
    )
    consumer.startup()
    bodies: list[int] = []
    facts: set[str] = set()
    while messages := consumer.receive(16, 10):
        for message in messages:
            bodies.append(int(message.body))
            facts.add(f"{message.tag} {message.keys} {message.properties} {message.corrupted}")
            consumer.ack(message)
    left = consumer.receive(16, 10)
    consumer.shutdown()
    producer.shutdown()
    return {"bodies": sorted(bodies), "facts": sorted(facts), "left": len(left)}


def change(configuration: Any) -> dict[str, Any]:
    """A simple consumer gives a message back early and gets it again."""
    producer = _produce(configuration, 1)
    consumer = SimpleConsumer(configuration, "g", {"t": FilterExpression()}, await_duration=5)
    consumer.startup()
    (first,) = consumer.receive(1, 60)
    consumer.change_invisible_duration(first, 1)
    (second,) = consumer.receive(1, 60)
    consumer.ack(second)
    consumer.shutdown()
    producer.shutdown()
    return {"attempts": [first.delivery_attempt, second.delivery_attempt]}


class _Listener(MessageListener):  # type: ignore[misc]
    """Fails each message's first delivery when told to; counts the rest."""

    def __init__(self, wanted: int, *, fail_first: bool) -> None:
        self.done = threading.Event()
        self.counts: Counter[int] = Counter()
        self._wanted, self._fail_first = wanted, fail_first
        self._lock = threading.Lock()

    def consume(self, message: Any) -> Any:
        """Take one message."""
        if self._fail_first and message.delivery_attempt == 1:
            return ConsumeResult.FAILURE
        with self._lock:
            self.counts[int(message.body)] += 1
            if len(self.counts) == self._wanted:
                self.done.set()
        return ConsumeResult.SUCCESS


def push(configuration: Any) -> dict[str, Any]:
    """A push consumer gets what was sent before and after its start, once each."""
    producer = _produce(configuration, 20)
    listener = _Listener(40, fail_first=False)
    started = time.monotonic()
    consumer = PushConsumer(configuration, "push", listener, {"t": FilterExpression()})
    consumer.startup()
    startup_s = time.monotonic() - started
    for number in range(20, 40):
        producer.send(_message("t", f"{number}".encode()))
    complete = listener.done.wait(20)
    time.sleep(0.5)
    consumer.shutdown()
    producer.shutdown()
    times = set(listener.counts.values())
    return {"complete": complete, "times": sorted(times), "startup_s": startup_s}


def push_retry(configuration: Any) -> dict[str, Any]:
    """A push consumer that fails each message once gets it a second time."""
    producer = _produce(configuration, 3)
    listener = _Listener(3, fail_first=True)
    consumer = PushConsumer(configuration, "push", listener, {"t": FilterExpression()})
    consumer.startup()
    complete = listener.done.wait(20)
    consumer.shutdown()
    producer.shutdown()
    return {"complete": complete}


class _Poisoned(MessageListener):  # type: ignore[misc]
    """Fails for the first message whenever it comes, and counts the others."""

    def __init__(self) -> None:
        self.failed = 0
        self.bodies: set[int] = set()
        self.done = threading.Event()

    def consume(self, message: Any) -> Any:
        """Take one message."""
        if int(message.body) == 0:
            self.failed += 1
            return ConsumeResult.FAILURE
        self.bodies.add(int(message.body))
        if len(self.bodies) == 9:
            self.done.set()
        return ConsumeResult.SUCCESS


def poison(configuration: Any) -> dict[str, Any]:
    """A push consumer fails for one message for ever; somebody else finds it in the end.

    A line on stdin says that it has been moved.
    """
    producer = _produce(configuration, 5)
    listener = _Poisoned()
    consumer = PushConsumer(configuration, "poison", listener, {"t": FilterExpression()})
    consumer.startup()
    print("started", flush=True)
    sys.stdin.readline()
    for number in range(5, 10):
        producer.send(_message("t", f"{number}".encode()))
    dead = SimpleConsumer(
        configuration, "undertaker", {"%DLQ%poison": FilterExpression()}, await_duration=5
    )
    dead.startup()
    (letter,) = dead.receive(16, 60)
    dead.ack(letter)
    listener.done.wait(20)
    consumer.shutdown()
    dead.shutdown()
    producer.shutdown()
    facts = [letter.body.decode(), letter.tag, sorted(letter.keys), letter.properties]
    return {"failed": listener.failed, "others": sorted(listener.bodies), "dead": facts}


class _InOrder(MessageListener):  # type: ignore[misc]
    """Notes each group's messages; one of each group fails the first time."""

    def __init__(self, wanted: int) -> None:
        self.groups: dict[str, list[int]] = {}
        self.failed: set[str] = set()
        self.wanted, self.done, self._lock = wanted, threading.Event(), threading.Lock()
        self.more = threading.Event()
        """Set once there is more than was wanted."""

    def consume(self, message: Any) -> Any:
        """Take one message."""
        with self._lock:
            name, number = message.message_group, int(message.body)
            if self.done.is_set():
                self.more.set()
            if number == 1 and name not in self.failed:
                self.failed.add(name)
                return ConsumeResult.FAILURE
            self.groups.setdefault(name, []).append(number)
            if sum(map(len, self.groups.values())) >= self.wanted:
                self.done.set()
            return ConsumeResult.SUCCESS


def fifo(configuration: Any) -> dict[str, Any]:
    """Message groups of a FIFO topic, to a push consumer that fails for the second of each once.

    A line on stdin says that the rest is to be sent.
    """
    producer = Producer(configuration, ("f",))
    producer.startup()
    listener = _InOrder(40)
    consumer = PushConsumer(configuration, "fifo", listener, {"f": FilterExpression()})
    consumer.startup()

    def send(numbers: range) -> None:
        for number in numbers:
            for name in ("a", "b", "c", "d"):
                message = _message("f", f"{number}".encode())
                message.message_group = name
                producer.send(message)

    send(range(5))
    print("started", flush=True)
    sys.stdin.readline()
    send(range(5, 10))
    listener.done.wait(40)
    listener.more.wait(1)  # what should not come has this long to come
    consumer.shutdown()
    producer.shutdown()
    return {"groups": listener.groups, "failed": sorted(listener.failed)}


def rolling(configuration: Any) -> dict[str, Any]:
    """Two versions of a service in one group: one asks for even, the other for both tags.

    A line on stdin says that the filters of both are known to the group.
    """
    producer = _produce(configuration, 0)
    listener = _Listener(100, fail_first=False)
    consumers = [
        PushConsumer(configuration, "rolling", listener, {"t": FilterExpression(expression)})
        for expression in ("even", "even || odd")
    ]
    for consumer in consumers:
        consumer.startup()
    print("started", flush=True)
    sys.stdin.readline()
    for number in range(100):
        producer.send(_message("t", f"{number}".encode(), "odd" if number % 2 else "even"))
    listener.done.wait(30)
    for consumer in consumers:
        consumer.shutdown()
    producer.shutdown()
    return {"bodies": sorted(listener.counts)}


def two_tags(configuration: Any) -> dict[str, Any]:
    """Two simple consumers of one group, each with a tag of its own, one after the other."""
    consumers = {
        tag: SimpleConsumer(configuration, "two", {"t": FilterExpression(tag)}, await_duration=1)
        for tag in ("even", "odd")
    }
    for consumer in consumers.values():
        consumer.startup()
        consumer.receive(16, 10)
    producer = _produce(configuration, 100)
    bodies: dict[str, list[int]] = {tag: [] for tag in consumers}
    for tag, consumer in consumers.items():
        while messages := consumer.receive(16, 10):
            for message in messages:
                bodies[tag].append(int(message.body))
                consumer.ack(message)
        consumer.shutdown()
    producer.shutdown()
    return {tag: sorted(found) for tag, found in bodies.items()}


def steady(configuration: Any) -> dict[str, Any]:
    """Send until stdin ends, whatever happens to the group; report what was acknowledged."""
    over = threading.Event()

    def wait() -> None:
        sys.stdin.read()
        over.set()

    threading.Thread(target=wait, daemon=True).start()
    producer = _produce(configuration, 1)
    print("started", flush=True)
    acked = [0]
    while not over.is_set():
        producer.send(_message("t", f"{len(acked)}".encode()))
        acked.append(len(acked))
    producer.shutdown()
    return {"acked": acked}


def refused(configuration: Any) -> dict[str, Any]:
    """What the SDK raises for a topic that does not exist."""
    producer = Producer(configuration)
    producer.startup()
    try:
        producer.send(_message("nowhere", b"x"))
    except Exception as error:  # noqa: BLE001 - whatever the SDK makes of it is the answer
        raised = f"{type(error).__name__}: {error}"
    producer.shutdown()
    return {"raised": raised}


def delay(configuration: Any) -> dict[str, Any]:
    """Send two messages to be delivered in 3 s, recall one; the other comes, and not before."""
    producer = Producer(configuration, ("d",))
    producer.startup()
    due_ms = (int(time.time()) + 3) * 1000
    receipts = []
    for body in (b"recalled", b"delivered"):
        message = Message()
        message.topic, message.body = "d", body
        message.delivery_timestamp = due_ms // DELIVERY_UNIT_MS
        receipts.append(producer.send(message))
    recalled = producer.recall_message("d", receipts[0].recall_handle)
    consumer = SimpleConsumer(
        configuration, "delayed", {"d": FilterExpression()}, await_duration=10
    )
    consumer.startup()
    (got,) = consumer.receive(16, 10)
    at_ms = time.time() * 1000
    consumer.ack(got)
    try:
        producer.recall_message("d", receipts[1].recall_handle)
    except Exception as error:  # noqa: BLE001 - whatever the SDK makes of it is the answer
        raised = f"{type(error).__name__}: {error}"
    consumer.shutdown()
    producer.shutdown()
    return {
        "body": got.body.decode(),
        "is_early": at_ms < due_ms,
        "is_told": got.delivery_timestamp == due_ms,
        "is_recalled": recalled == receipts[0].message_id,
        "raised": raised,
    }


def tls(configuration: Any) -> dict[str, Any]:
    """Produce through the TLS port."""
    producer = _produce(configuration, 5, tls=True)
    producer.shutdown()
    return {"sent": 5}


if __name__ == "__main__":
    _story, _endpoints = sys.argv[1:]
    _configuration = ClientConfiguration(_endpoints, Credentials("", ""))
    print(json.dumps(globals()[_story](_configuration)), flush=True)
