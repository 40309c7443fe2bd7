"""Drives the unmodified RocketMQ client for Python: JSON lines in, JSON lines out.

`e2e.clients.drivers` has the commands; each runs in a thread of its own. It is a process of its
own because the client keeps threads, and because gRPC reads its CA from the environment once.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

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
    TransactionChecker,
    TransactionResolution,
)
from rocketmq.grpc_protocol import FilterType

_THREADS: Final = 256
_out = sys.stdout
_lock = threading.Lock()
_clients: dict[str, Any] = {}
_received: dict[int, Any] = {}
_handles = itertools.count(1)


def say(line: dict[str, Any]) -> None:
    """Print a line in one piece."""
    with _lock:
        _out.write(json.dumps(line) + "\n")
        _out.flush()


def described(message: Any, handle: int) -> dict[str, Any]:
    """Return what the harness compares."""
    return {
        "handle": handle,
        "text": message.body[:64].decode("utf-8", "replace"),
        "size": len(message.body),
        "sha256": hashlib.sha256(message.body).hexdigest(),
        "tag": message.tag,
        "keys": sorted(message.keys),
        "properties": dict(message.properties),
        "attempt": message.delivery_attempt,
    }


def _configuration(asked: dict[str, Any]) -> Any:
    return ClientConfiguration(";".join(asked["endpoints"]), Credentials())


def _subscription(asked: dict[str, Any]) -> dict[str, Any]:
    sql = asked.get("sql")
    kind = (sql, FilterType.SQL) if sql else (asked.get("tag", "*"), FilterType.TAG)
    return {asked["topic"]: FilterExpression(*kind)}


class _Checker(TransactionChecker):  # type: ignore[misc]
    def check(self, message: Any) -> Any:
        unwanted = message.body.startswith(b"no")
        return TransactionResolution.ROLLBACK if unwanted else TransactionResolution.COMMIT


class _Listener(MessageListener):  # type: ignore[misc]
    """Says each delivery; fails the first so many."""

    def __init__(self, consumer: str, fail: int) -> None:
        self._consumer, self._fail = consumer, fail

    def consume(self, message: Any) -> Any:
        """Take one message."""
        say({"event": "message", "consumer": self._consumer, **described(message, 0)})
        failed = message.delivery_attempt <= self._fail
        return ConsumeResult.FAILURE if failed else ConsumeResult.SUCCESS


def _start(asked: dict[str, Any], client: Any) -> None:
    client.startup()
    _clients[asked["name"]] = client


def producer(asked: dict[str, Any]) -> None:
    """Start a producer."""
    checker = _Checker() if asked.get("transaction") else None
    tls = bool(asked.get("tls"))
    _start(asked, Producer(_configuration(asked), (asked["topic"],), checker, tls_enable=tls))


def send(asked: dict[str, Any]) -> dict[str, Any]:
    """Send one message."""
    message = Message()
    text = asked["text"].encode()
    size = asked.get("size", len(text))
    message.topic = asked["topic"]
    message.body = (text * (size // len(text) + 1))[:size]
    if "tag" in asked:
        message.tag = asked["tag"]
    for key in asked.get("keys", ()):
        message.keys = key  # the setter adds
    for key, value in asked.get("properties", {}).items():
        message.add_property(key, value)
    if "message_group" in asked:
        message.message_group = asked["message_group"]
    if "deliver_at_ms" in asked:
        message.delivery_timestamp = asked["deliver_at_ms"] // 1000  # in seconds, as it sends them
    if "priority" in asked:
        message.priority = asked["priority"]
    client = _clients[asked["producer"]]
    if asked.get("transaction"):
        transaction = client.begin_transaction()
        receipt = client.send(message, transaction)
        return {"message_id": receipt.message_id, **end(transaction, asked.get("end"))}
    receipt = client.send_async(message).result() if asked.get("async") else client.send(message)
    return {"message_id": receipt.message_id}


def end(transaction: Any, end: str | None) -> dict[str, str]:
    """End a transaction as its producer wants it, if it does; return what failed."""
    try:
        if end:
            getattr(transaction, end)()
    except Exception as error:  # noqa: BLE001 - the message is sent; its checker decides
        return {"end_error": f"{type(error).__name__}: {error}"}
    return {}


def push(asked: dict[str, Any]) -> None:
    """Start a push consumer."""
    listener = _Listener(asked["name"], asked.get("fail", 0))
    consumer = PushConsumer(
        _configuration(asked), asked["group"], listener, _subscription(asked),
        tls_enable=bool(asked.get("tls")),
    )  # fmt: skip
    _start(asked, consumer)


def simple(asked: dict[str, Any]) -> None:
    """Start a simple consumer."""
    consumer = SimpleConsumer(
        _configuration(asked), asked["group"], _subscription(asked),
        await_duration=asked["await_s"], tls_enable=bool(asked.get("tls")),
    )  # fmt: skip
    _start(asked, consumer)


def receive(asked: dict[str, Any]) -> dict[str, Any]:
    """Poll once."""
    found = _clients[asked["consumer"]].receive(asked["count"], asked["invisible_s"])
    messages = []
    for message in found or ():
        handle = next(_handles)
        _received[handle] = message
        messages.append(described(message, handle))
    return {"messages": messages}


def ack(asked: dict[str, Any]) -> None:
    """Acknowledge one message."""
    _clients[asked["consumer"]].ack(_received[asked["handle"]])


def change(asked: dict[str, Any]) -> None:
    """Change how long a message stays invisible."""
    message = _received[asked["handle"]]
    _clients[asked["consumer"]].change_invisible_duration(message, asked["invisible_s"])


def stop(asked: dict[str, Any]) -> None:
    """End a client as an application does."""
    _clients.pop(asked["name"]).shutdown()


_COMMANDS: Final[dict[str, Callable[[dict[str, Any]], dict[str, Any] | None]]] = {
    "producer": producer,
    "send": send,
    "push": push,
    "simple": simple,
    "receive": receive,
    "ack": ack,
    "change": change,
    "stop": stop,
}


def _answer(asked: dict[str, Any]) -> None:
    try:
        told = _COMMANDS[asked["do"]](asked) or {}
    except Exception as error:  # noqa: BLE001 - whatever the client raises is what a user sees
        told = {"error": f"{type(error).__name__}: {error}"}
    say({**told, "id": asked["id"]})


def main() -> None:
    """Carry out commands until the input ends."""
    sys.stdout = sys.stderr  # the client prints
    threads = ThreadPoolExecutor(_THREADS)
    for line in sys.stdin:
        threads.submit(_answer, json.loads(line))
    os._exit(0)  # the client's own threads do not end


if __name__ == "__main__":
    main()
