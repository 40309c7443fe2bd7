"""RecallMessage: a message that waits for its time is not delivered any more; see `recalls`."""

from __future__ import annotations

from dledger.calls.caller import Caller
from dledger.checks.resources import client_id, topic_name
from dledger.requests.engine import Engine
from dledger.requests.recalls import recall
from dledger.rpc.rocketmq_stubs import service
from dledger.rpc.status import ok


class Recaller:
    """Serves RecallMessage on the leader."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    async def recall(
        self, request: service.RecallMessageRequest, caller: Caller
    ) -> service.RecallMessageResponse:
        """Recall a message; OK says that nobody ever gets it. Raises like `recalls.recall`."""
        client_id(caller)
        name = topic_name(request.topic)
        message_id = await recall(self._engine, name, request.recall_handle)
        return service.RecallMessageResponse(status=ok(), message_id=message_id)
