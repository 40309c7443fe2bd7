"""Recalls messages that wait for their time, whichever protocol asks for it. On the leader.

What is said is so: that a message was recalled, now or before, or was delivered already, or that
nobody knows any more. A message is either recalled or delivered, since both are one step of the log
(CANCEL_HELD and RELEASE_HELD); so a repeated call has the same answer, whoever leads. What comes
too late is NOT_FOUND: Python's client of RocketMQ takes MESSAGE_NOT_FOUND for a success.
"""

from __future__ import annotations

from dledger.broker.commands import CancelHeld
from dledger.broker.held_refs import Fate
from dledger.broker.results import HeldCancelled
from dledger.broker.topics import DELAY
from dledger.errors import TopicTypeMismatch, UnknownTopic
from dledger.requests.engine import Engine
from dledger.requests.recall_handles import RecallHandles
from dledger.rpc.status import Code, Rejected


async def recall(engine: Engine, name: str, handle: str) -> str:
    """Recall a message of the topic of that name; return its id: nobody ever gets it.

    Raises:
        UnknownTopic: There is no such topic.
        TopicTypeMismatch: Its messages do not wait.
        Rejected: The handle is none of its, or the message was delivered, or may have been.
    """
    topic = engine.state.topics.get(name)
    if topic is None:
        raise UnknownTopic(name)
    if topic.type != DELAY.name:
        raise TopicTypeMismatch(
            f"topic {name!r} takes {topic.type} messages, which cannot be recalled"
        )
    handles = RecallHandles(engine.state.secret, topic=name, generation=topic.generation)
    ref, message_id = handles.decode(handle)
    result = await engine.propose(CancelHeld(refs=(ref,)).encode())
    if not isinstance(result, HeldCancelled):
        raise TypeError(f"CANCEL_HELD answered {result!r}")
    if result.before[0] is Fate.DELIVERED:
        raise Rejected(
            Code.NOT_FOUND, f"message {message_id!r} was delivered: it was due, and is in its queue"
        )
    if result.before[0] is Fate.UNKNOWN:
        raise Rejected(
            Code.NOT_FOUND,
            f"message {message_id!r} is not held: it was delivered or recalled over an hour ago, "
            "and which of both is not known any more",
        )
    return message_id
