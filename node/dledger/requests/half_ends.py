"""The end of a transaction: its half is delivered, or nobody ever gets it. Done by the leader.

Either is one command of the log, and what became of the half before it is in the answer. So an end
may be said twice, by a producer, by whoever relays it and after a change of leader: the first one
counts, and the others are told which it was. Whoever is told of a transaction may end it, at any
node and in either protocol; one that says the same again is told OK for at least an hour.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from dledger.broker.command_frame import MalformedCommandError
from dledger.broker.commands import CancelHeld
from dledger.broker.held_commands import What, encode_release_held
from dledger.broker.held_refs import Fate, HeldMessage, Kind, Ref
from dledger.broker.message import Columns, Message
from dledger.broker.produce import ProduceFrame
from dledger.broker.results import HeldCancelled, HeldReleased
from dledger.broker.topics import TRANSACTION
from dledger.common.metrics import TransactionMetrics
from dledger.errors import OffsetOutOfRange, TopicTypeMismatch, Unavailable, UnknownTopic
from dledger.requests.engine import Engine
from dledger.requests.transaction_ids import TransactionIds, no_transaction

_TRIES: Final = 3
"""Each time a half was copied elsewhere while its entry was read."""
_APPLIED_S: Final = 5.0


class Half(NamedTuple):
    """A half as its producer sent it.

    Attributes:
        held: Where it is.
        topic: Where it goes when it is committed.
        client_id: Its producer's, as the log has it.
        born_host: Where that was.
        message: What it says; None: it cannot be decoded.
    """

    held: HeldMessage
    topic: str
    client_id: str
    born_host: str
    message: Message | None


def half_named(engine: Engine, name: str, transaction_id: str) -> Ref:
    """Return which half a transaction of the topic of that name is about.

    Raises:
        UnknownTopic: There is no such topic.
        TopicTypeMismatch: Its messages are of no transactions.
        Rejected: The id is none of its.
    """
    topic = engine.state.topics.get(name)
    if topic is None:
        raise UnknownTopic(name)
    if topic.type != TRANSACTION.name:
        raise TopicTypeMismatch(
            f"topic {name!r} takes {topic.type} messages, which are of no transaction"
        )
    ids = TransactionIds(engine.state.secret, topic=name, generation=topic.generation)
    return ids.decode(transaction_id)


async def end(
    engine: Engine, ref: Ref, metrics: TransactionMetrics, *, commits: bool, line: str = ""
) -> None:
    """Commit a half or roll it back, as a producer says; it may have this end already.

    Raises:
        Rejected: It has the other end, or nobody knows any more which.
        UnknownTopic, DiskFull, Unavailable: As `commit` and `roll_back` do.
    """
    if commits:
        _check_end(await commit(engine, ref, line=line), Fate.DELIVERED)
        metrics.committed.inc()
    else:
        _check_end(await roll_back(engine, ref, line=line), Fate.CANCELLED)
        metrics.rolled_back.inc()


def _check_end(before: Fate, wanted: Fate) -> None:
    if before in (Fate.HELD, wanted):
        return
    if before is Fate.UNKNOWN:
        raise no_transaction(
            "the transaction ended over an hour ago, and how is not known any more, "
            "or it is of a time that the log has not seen"
        )
    how = "committed" if before is Fate.DELIVERED else "rolled back"
    raise no_transaction(f"the transaction was {how} before, and that is its end")


async def read_half(engine: Engine, ref: Ref) -> Half | None:
    """Return a half; None: it has an end, or there is none of this name.

    Raises:
        Unavailable: It cannot be read now.
    """
    for _ in range(_TRIES):
        held = engine.state.held.find(ref)
        if held is None or held.kind is not Kind.HALF:
            return None
        payload = held.payload
        try:
            entry = await engine.read_entry(payload.index)
        except OffsetOutOfRange:
            continue  # it lies elsewhere by now
        frame = ProduceFrame(entry.data, payload.start, payload.end)
        try:
            message = frame.message(held.row)
        except MalformedCommandError:
            message = None
        return Half(held, frame.topic, frame.client_id, frame.born_host, message)
    raise Unavailable("the message of the transaction is being copied elsewhere")


async def commit(engine: Engine, ref: Ref, *, line: str = "") -> Fate:
    """Deliver a half; return what it was before: `HELD` if this did it.

    Raises:
        UnknownTopic: Its topic is gone, and it with that.
        DiskFull: There is no room for it; it stays.
        Unavailable: It may be committed; may be repeated.
    """
    half = await read_half(engine, ref)
    if half is None:
        return await fate_of(engine, ref)
    if half.message is None:
        return await roll_back(engine, ref, line=line)  # nobody could ever read it
    command = encode_release_held(
        What.DELIVER,
        [ref],
        Columns.of([half.message]),
        topic=half.topic,
        generation=half.held.generation,
        born_host=half.born_host,
    )
    result = await engine.submit(command, line=line)
    if not isinstance(result, HeldReleased):
        raise TypeError(f"RELEASE_HELD answered {result!r}")
    if result.before[0] is Fate.HELD and result.stored is None:
        raise UnknownTopic(half.topic)
    return result.before[0]


async def roll_back(engine: Engine, ref: Ref, *, line: str = "") -> Fate:
    """Let nobody ever get a half; return what it was before: `HELD` if this did it.

    Raises:
        Unavailable: It may be rolled back; may be repeated.
    """
    result = await engine.submit(CancelHeld(refs=(ref,)).encode(), line=line)
    if not isinstance(result, HeldCancelled):
        raise TypeError(f"CANCEL_HELD answered {result!r}")
    return result.before[0]


async def fate_of(engine: Engine, ref: Ref) -> Fate:
    """Return what became of a half, or `HELD`.

    A leader that was replaced without knowing it may not have heard of a half yet; of one that has
    an end it cannot be wrong.

    Raises:
        Unavailable: It cannot be told now.
    """
    held = engine.state.held
    if held.fate(ref) is Fate.UNKNOWN:
        await engine.wait_applied(await engine.read_index(), _APPLIED_S)
    return engine.state.held.fate(ref)
