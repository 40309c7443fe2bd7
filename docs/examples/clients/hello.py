"""Sends ten messages and consumes them, with the RocketMQ client for Python.

pip install rocketmq-python-client==5.1.2
python docs/examples/clients/hello.py 127.0.0.1:18081 hello
"""

import sys
import threading
import time
from collections.abc import Callable
from functools import partial

from rocketmq import (
    ClientConfiguration,
    ConsumeResult,
    Credentials,
    FilterExpression,
    Message,
    MessageListener,
    Producer,
    PushConsumer,
)

MESSAGES = 10
TRIES = 60


class Greeter(MessageListener):
    """Prints what comes; a message that fails comes again after 1 s, 5 s, 10 s and so on."""

    def __init__(self) -> None:
        self.bodies: set[str] = set()
        self.complete = threading.Event()

    def consume(self, message: Message) -> ConsumeResult:
        """Take one message, in one of the consumer's threads."""
        self.bodies.add(message.body.decode())
        print(message.body.decode() + "\n", end="", flush=True)  # one write: there are threads
        if len(self.bodies) == MESSAGES:
            self.complete.set()
        return ConsumeResult.SUCCESS


def tried(call: Callable[[], object]) -> None:
    """Call until it does not fail, as it does while the group is away; for a minute and more."""
    for attempt in range(1, TRIES + 1):
        try:
            call()
            return
        except Exception:
            if attempt == TRIES:
                raise
            time.sleep(1)


def main(endpoints: str, topic: str) -> int:
    """Return 0 when everything came."""
    configuration = ClientConfiguration(endpoints, Credentials())
    producer = Producer(configuration, (topic,))
    tried(producer.startup)  # starts in any case: the first send is what fails
    listener = Greeter()
    consumer = PushConsumer(
        configuration, f"{topic}-readers", listener, {topic: FilterExpression()}
    )
    tried(consumer.startup)
    for number in range(MESSAGES):
        message = Message()
        message.topic = topic
        message.body = b"hello %d" % number
        tried(partial(producer.send, message))
    complete = listener.complete.wait(60)
    consumer.shutdown()
    producer.shutdown()
    return 0 if complete else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2]))
