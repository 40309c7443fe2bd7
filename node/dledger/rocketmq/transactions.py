"""EndTransaction: a half is committed or rolled back. OK says that a majority has it.

Whoever is told of a transaction may end it, at any node, and say so again: the first word counts,
and one that says the same is OK for at least an hour. One that says the other is refused.
"""

from __future__ import annotations

from typing import Final

from dledger.calls.caller import Caller
from dledger.checks.resources import client_id, topic_name
from dledger.common.metrics import NodeMetrics
from dledger.requests.engine import Engine
from dledger.requests.half_ends import end, half_named
from dledger.requests.transaction_ids import no_transaction
from dledger.rocketmq.producers import Producers
from dledger.rpc.rocketmq_stubs import definition, service
from dledger.rpc.status import ok

_COMMIT: Final = definition.TransactionResolution.COMMIT
_ROLLBACK: Final = definition.TransactionResolution.ROLLBACK


class TransactionEnds:
    """Serves EndTransaction on the leader."""

    def __init__(self, engine: Engine, producers: Producers, metrics: NodeMetrics) -> None:
        self._engine, self._producers, self._metrics = engine, producers, metrics

    async def end(
        self, request: service.EndTransactionRequest, caller: Caller
    ) -> service.EndTransactionResponse:
        """Commit or roll back; who does not know yet is asked again later.

        Raises:
            UnknownTopic: There is no such topic.
            TopicTypeMismatch: Its messages are of no transactions.
            Rejected: The id is none of its, or the transaction has ended otherwise.
        """
        client, name = client_id(caller), topic_name(request.topic)
        if not request.transaction_id.strip():
            raise no_transaction("EndTransaction names no transaction: transaction_id is empty")
        ref = half_named(self._engine, name, request.transaction_id)
        self._producers.note(name, client)
        metrics = self._metrics.transactions
        if request.resolution in (_COMMIT, _ROLLBACK):
            commits = request.resolution == _COMMIT
            await end(self._engine, ref, metrics, commits=commits, line=caller.line)
        else:
            metrics.undecided.inc()
        return service.EndTransactionResponse(status=ok())
