"""Load through the unmodified RocketMQ Python SDK, as `e2e.bench.loads` asks for it.

Its modes, all in a closed loop of single messages: ``sync`` (*window* threads), ``async``
(*window* sends under way from one thread) and ``consume`` (receive and acknowledge what there is,
in *window* threads).
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

from rocketmq.v5.client import ClientConfiguration, Credentials
from rocketmq.v5.consumer import SimpleConsumer
from rocketmq.v5.model import FilterExpression, Message
from rocketmq.v5.producer import Producer

from e2e.bench.load_server import Tally

TOPIC: Final = "bench-sdk"
GROUP: Final = "bench-sdk"
_RECEIVE: Final = 32
_INVISIBLE_S: Final = 30
_POLL_S: Final = 1


def main() -> int:
    """Answer until the input ends."""
    endpoints = sys.argv[1]
    answers = sys.stdout
    sys.stdout = sys.stderr  # the SDK prints
    modes: dict[str, Callable[[str, dict[str, Any]], Tally]] = {
        "sync": send_sync,
        "async": send_async,
        "consume": consume,
    }
    for line in sys.stdin:
        asked = json.loads(line)
        print(json.dumps(modes[asked["mode"]](endpoints, asked).answer()), file=answers, flush=True)
    return 0


def send_sync(endpoints: str, asked: dict[str, Any]) -> Tally:
    """Send from so many threads, each waiting for its answer."""
    with _producer(endpoints) as producer:
        producer.send(_message(asked))  # finds the route

        def send() -> int:
            producer.send(_message(asked))
            return 1

        return _in_threads(asked, send)


def send_async(endpoints: str, asked: dict[str, Any]) -> Tally:
    """Send from one thread, so many under way at once."""
    with _producer(endpoints) as producer:
        producer.send(_message(asked))
        tally = Tally(asked["seconds"])
        free = threading.Semaphore(asked["window"])

        def done(began_s: float, future: Any) -> None:
            free.release()
            if future.exception() is None:
                tally.note(began_s)
            else:
                tally.note_failure()

        while tally.is_running():
            free.acquire()
            began_s = time.monotonic()
            future = producer.send_async(_message(asked))
            future.add_done_callback(lambda f, began_s=began_s: done(began_s, f))
        for _ in range(asked["window"]):
            free.acquire()
    return tally


def consume(endpoints: str, asked: dict[str, Any]) -> Tally:
    """Receive in batches and acknowledge each message; a call's latency is the batch's."""
    consumer = SimpleConsumer(
        _configuration(endpoints), GROUP, {TOPIC: FilterExpression()}, await_duration=_POLL_S
    )
    consumer.startup()
    try:

        def receive() -> int:
            received = consumer.receive(_RECEIVE, _INVISIBLE_S)
            for message in received:
                consumer.ack(message)
            return len(received)

        return _in_threads(asked, receive)
    finally:
        consumer.shutdown()


def _in_threads(asked: dict[str, Any], call: Callable[[], int]) -> Tally:
    """Call again and again from *window* threads; each call returns its number of messages."""
    tally, window = Tally(asked["seconds"]), asked["window"]

    def work(_: int) -> None:
        while tally.is_running():
            began_s = time.monotonic()
            try:
                tally.note(began_s, call())
            except Exception:  # noqa: BLE001 - the SDK raises many kinds
                tally.note_failure()

    with ThreadPoolExecutor(window) as pool:
        list(pool.map(work, range(window)))
    return tally


@contextlib.contextmanager
def _producer(endpoints: str) -> Any:
    producer = Producer(_configuration(endpoints), (TOPIC,))
    producer.startup()
    try:
        yield producer
    finally:
        producer.shutdown()


def _configuration(endpoints: str) -> ClientConfiguration:
    return ClientConfiguration(endpoints, Credentials())


def _message(asked: dict[str, Any]) -> Message:
    message = Message()
    message.topic, message.body = TOPIC, os.urandom(asked["size_bytes"])
    return message


if __name__ == "__main__":
    sys.exit(main())
