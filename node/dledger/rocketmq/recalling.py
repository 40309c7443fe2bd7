"""RecallMessage: a message that waits for its time is not delivered any more.

Said as it is: whether it was recalled, now or before, or was delivered already, or nobody knows any
more. A message is either recalled or delivered, since both are one step of the log (CANCEL_HELD and
RELEASE_HELD), so a repeated call has the same answer, whoever leads. What comes too late is
NOT_FOUND: Python's client takes MESSAGE_NOT_FOUND for a success.
"""

from __future__ import annotations

from dledger.broker.commands import CancelHeld
from dledger.broker.held_refs import Fate
from dledger.broker.results import HeldCancelled
from dledger.broker.topics import DELAY
from dledger.calls.caller import Caller
from dledger.checks.resources import client_id, topic_name
from dledger.errors import TopicTypeMismatch, UnknownTopic
from dledger.requests.engine import Engine
from dledger.rocketmq.recall_handles import RecallHandles
from dledger.rpc.rocketmq_stubs import service
from dledger.rpc.status import Code, Rejected, ok


class Recaller:
    """Serves RecallMessage on the leader."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    async def recall(
        self, request: service.RecallMessageRequest, caller: Caller
    ) -> service.RecallMessageResponse:
        """Recall a message; OK says that nobody ever gets it.

        Raises:
            UnknownTopic: There is no such topic.
            TopicTypeMismatch: Its messages do not wait.
            Rejected: The handle is none of its, or the message was delivered, or may have been.
        """
        client_id(caller)
        name, state = topic_name(request.topic), self._engine.state
        topic = state.topics.get(name)
        if topic is None:
            raise UnknownTopic(name)
        if topic.type != DELAY.name:
            raise TopicTypeMismatch(
                f"topic {name!r} takes {topic.type} messages, which cannot be recalled"
            )
        handles = RecallHandles(state.secret, topic=name, generation=topic.generation)
        ref, message_id = handles.decode(request.recall_handle)
        result = await self._engine.propose(CancelHeld(refs=(ref,)).encode())
        if not isinstance(result, HeldCancelled):
            raise TypeError(f"CANCEL_HELD answered {result!r}")
        if result.before[0] is Fate.DELIVERED:
            raise Rejected(
                Code.NOT_FOUND,
                f"message {message_id!r} was delivered: it was due, and is in its queue",
            )
        if result.before[0] is Fate.UNKNOWN:
            raise Rejected(
                Code.NOT_FOUND,
                f"message {message_id!r} is not held: it was delivered or recalled over an hour "
                "ago, and which of both is not known any more",
            )
        return service.RecallMessageResponse(status=ok(), message_id=message_id)
