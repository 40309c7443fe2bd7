"""Messages of each type, with the RocketMQ client for Python: sends some, and consumes them.

pip install rocketmq-python-client==5.1.2
dledger topic create transfers --type FIFO --endpoint 127.0.0.1:18281
python docs/examples/clients/message_types.py 127.0.0.1:18081 transfers fifo

Beside fifo there are delay, transaction and priority, for topics of these types; sql and dead, for
NORMAL ones.
"""

import sys
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import TypeVar

from rocketmq import (
    ClientConfiguration,
    Credentials,
    FilterExpression,
    Message,
    Producer,
    SimpleConsumer,
    Transaction,
    TransactionChecker,
    TransactionResolution,
)
from rocketmq.grpc_protocol import FilterType
from rocketmq.v5.exception import (
    BadRequestException,
    IllegalArgumentException,
    NotFoundException,
    PayloadTooLargeException,
)

T = TypeVar("T")
REFUSED = (
    BadRequestException,
    IllegalArgumentException,
    NotFoundException,
    PayloadTooLargeException,
)
PATIENCE_S = 60
INVISIBLE_S = 30


def tried(call: Callable[[], T], final: tuple[type[Exception], ...] = REFUSED) -> T:
    """Call until it does not fail; a refusal is final, as it would be the same the next time.

    What failed may have been done all the same: a message that is sent again is another one, of
    which a reader may get both.
    """
    end_s = time.monotonic() + PATIENCE_S
    while True:
        try:
            return call()
        except final:
            raise
        except Exception:
            if time.monotonic() > end_s:
                raise
        time.sleep(0.5)


def started(make: Callable[[], T]) -> T:
    """Return a client that has started, as it does not while the group, or its topic, is away."""

    def start() -> T:
        client = make()
        client.startup()
        return client

    return tried(start, final=())


def consume(
    config: ClientConfiguration, group: str, topic: str, count: int, filter_: str = ""
) -> None:
    """Print and acknowledge so many messages, one by one, so that their order is seen."""
    wanted = FilterExpression(filter_, FilterType.SQL) if filter_ else FilterExpression()
    consumer = started(lambda: SimpleConsumer(config, group, {topic: wanted}))
    end_s = time.monotonic() + PATIENCE_S
    while count > 0 and time.monotonic() < end_s:
        for message in tried(partial(consumer.receive, 1, INVISIBLE_S)):
            late_ms = time.time() * 1000 - (message.delivery_timestamp or 0)
            late = f", {late_ms:.0f} ms after its time" if message.delivery_timestamp else ""
            print(message.body.decode() + late, flush=True)
            tried(partial(consumer.ack, message))
            count -= 1
    consumer.shutdown()
    if count > 0:
        raise TimeoutError("they did not come")


def fifo(config: ClientConfiguration, topic: str) -> None:
    """Messages of a message group come in the order in which they were sent."""
    producer = started(lambda: Producer(config, (topic,)))
    for number in range(5):
        for account in ("ada", "bob"):
            message = Message()
            message.topic, message.body = topic, f"{account} {number}".encode()
            message.message_group = account
            tried(partial(producer.send, message))  # before the next one of its group is sent
    consume(config, f"{topic}-readers", topic, 10)


def delay(config: ClientConfiguration, topic: str) -> None:
    """A message comes at its time; one that is recalled before, never."""
    producer = started(lambda: Producer(config, (topic,)))
    recalled, reminder = Message(), Message()
    recalled.topic, recalled.body = topic, b"recalled"
    recalled.delivery_timestamp = int(time.time()) + 5  # in seconds
    receipt = tried(partial(producer.send, recalled))
    tried(partial(producer.recall_message, topic, receipt.recall_handle))  # NotFound: it has come
    reminder.topic, reminder.body = topic, b"reminder"
    reminder.delivery_timestamp = int(time.time()) + 6
    tried(partial(producer.send, reminder))
    consume(config, f"{topic}-readers", topic, 1)


class Checker(TransactionChecker):
    """Says of a transaction that was left open what the database says."""

    def __init__(self) -> None:
        self.paid: set[str] = set()  # a table, in your program

    def check(self, message: Message) -> TransactionResolution:
        """Answer for a message; in a thread of the client."""
        is_paid = message.message_id in self.paid
        return TransactionResolution.COMMIT if is_paid else TransactionResolution.ROLLBACK


def transaction(config: ClientConfiguration, topic: str) -> None:
    """A message comes if its transaction is committed, by its producer or by its checker."""
    checker = Checker()
    producer = started(lambda: Producer(config, (topic,), checker=checker))

    def begun(body: str) -> tuple[Transaction, str]:
        message = Message()
        message.topic, message.body = topic, body.encode()
        transaction = producer.begin_transaction()
        receipt = producer.send(message, transaction)
        return transaction, receipt.message_id

    order, message_id = tried(partial(begun, "paid"))  # again: in another transaction
    checker.paid.add(message_id)  # commit your own transaction, with the id in it
    with suppress(Exception):  # if it fails, the checker is asked, and says the same
        order.commit()

    order, _ = tried(partial(begun, "declined"))
    with suppress(Exception):
        order.rollback()

    _, message_id = tried(partial(begun, "paid, and left open"))
    checker.paid.add(message_id)  # the checker is asked 6 s later
    consume(config, f"{topic}-readers", topic, 2)


def priority(config: ClientConfiguration, topic: str) -> None:
    """Of what waits, the highest priority comes first."""
    producer = started(lambda: Producer(config, (topic,)))
    for number in (1, 2, 3):
        message = Message()
        message.topic, message.body = topic, f"priority {number}".encode()
        message.priority = number
        tried(partial(producer.send, message))
    consume(config, f"{topic}-readers", topic, 3)


def sql(config: ClientConfiguration, topic: str) -> None:
    """A consumer gets what matches its filter."""
    producer = started(lambda: Producer(config, (topic,)))
    for price in (5, 25, 15, 35, 12):
        message = Message()
        message.topic, message.body = topic, f"price {price}".encode()
        message.add_property("price", str(price))
        tried(partial(producer.send, message))
    consume(config, f"{topic}-readers", topic, 2, "price BETWEEN 10 AND 20")


def dead(config: ClientConfiguration, topic: str) -> None:
    """What is not acknowledged is a dead letter after the attempts that its consumer group has.

    17, unless it has other numbers: `dledger group set NAME --max-attempts 2`.
    """
    group = f"{topic}-readers"
    producer = started(lambda: Producer(config, (topic,)))
    message = Message()
    message.topic, message.body = topic, b"unreadable"
    tried(partial(producer.send, message))
    subscription = {topic: FilterExpression()}
    consumer = started(lambda: SimpleConsumer(config, group, subscription, await_duration=2))
    while tried(partial(consumer.receive, 1, 1)):
        pass  # not acknowledged within a second, it comes again, until it is moved
    consume(config, group, f"%DLQ%{group}", 1)
    consumer.shutdown()


if __name__ == "__main__":
    types = {each.__name__: each for each in (fifo, delay, transaction, priority, sql, dead)}
    endpoints, topic, name = sys.argv[1:]
    types[name](ClientConfiguration(endpoints, Credentials()), topic)
