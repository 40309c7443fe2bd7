"""A push and a simple consumer with the unmodified Python SDK; run by `test_sidecar_consumers`.

``python sidecar_consumer.py ENDPOINT TOPIC SECONDS``: each takes so long over the first message
that it gets. A line of JSON tells each delivery, which consumer and what, and each acknowledgement.
"""

from __future__ import annotations

import json
import sys
import threading
import time

from rocketmq import (
    ClientConfiguration,
    ConsumeResult,
    Credentials,
    FilterExpression,
    Message,
    MessageListener,
    PushConsumer,
    SimpleConsumer,
)

_told = threading.Lock()


def tell(*what: str) -> None:
    """Print a line in one piece."""
    with _told:
        print(json.dumps(what), flush=True)


class Slow(MessageListener):  # type: ignore[misc]
    """Takes long over its first message."""

    def __init__(self, seconds: float) -> None:
        self._seconds, self._is_first = seconds, True

    def consume(self, message: Message) -> ConsumeResult:
        """Take one message."""
        tell("push", message.body.decode())
        if self._is_first:
            self._is_first = False
            time.sleep(self._seconds)
            tell("acked", "push")
        return ConsumeResult.SUCCESS


def poll(consumer: SimpleConsumer, seconds: float) -> None:
    """Take messages, and long over the first one."""
    is_first = True
    while True:
        for message in consumer.receive(1, int(1.5 * seconds) + 10) or ():
            tell("simple", message.body.decode())
            if is_first:
                is_first = False
                time.sleep(seconds)
            consumer.ack(message)
            tell("acked", "simple")


def main(endpoint: str, topic: str, seconds: float) -> None:
    """Consume until the input ends."""
    subscription = {topic: FilterExpression()}
    configuration = ClientConfiguration(endpoint, Credentials())
    push = PushConsumer(configuration, "pushes", Slow(seconds), subscription)
    push.startup()
    simple = SimpleConsumer(configuration, "polls", subscription, await_duration=5)
    simple.startup()
    threading.Thread(target=poll, args=(simple, seconds), daemon=True).start()
    tell("started")
    sys.stdin.read()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], float(sys.argv[3]))
