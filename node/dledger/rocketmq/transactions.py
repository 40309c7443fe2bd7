"""EndTransaction: a half is committed or rolled back. OK says that a majority has it.

Whoever is told of a transaction may end it, at any node, and say so again: the first word counts,
and one that says the same is OK for at least an hour. One that says the other is refused.
"""

from __future__ import annotations

from typing import Final

from dledger.broker.held_refs import Fate
from dledger.broker.topics import TRANSACTION
from dledger.calls.caller import Caller
from dledger.checks.resources import client_id, topic_name
from dledger.common.metrics import NodeMetrics
from dledger.errors import TopicTypeMismatch, UnknownTopic
from dledger.requests.engine import Engine
from dledger.requests.half_ends import commit, roll_back
from dledger.rocketmq.producers import Producers
from dledger.rocketmq.transaction_ids import TransactionIds, no_transaction
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
        client, name, state = client_id(caller), topic_name(request.topic), self._engine.state
        if not request.transaction_id.strip():
            raise no_transaction("EndTransaction names no transaction: transaction_id is empty")
        topic = state.topics.get(name)
        if topic is None:
            raise UnknownTopic(name)
        if topic.type != TRANSACTION.name:
            raise TopicTypeMismatch(
                f"topic {name!r} takes {topic.type} messages, which are of no transaction"
            )
        ids = TransactionIds(state.secret, topic=name, generation=topic.generation)
        ref = ids.decode(request.transaction_id)
        self._producers.note(name, client)
        if request.resolution == _COMMIT:
            before = await commit(self._engine, ref, line=caller.line)
            _check_end(before, Fate.DELIVERED)
            self._metrics.transactions.committed.inc()
        elif request.resolution == _ROLLBACK:
            before = await roll_back(self._engine, ref, line=caller.line)
            _check_end(before, Fate.CANCELLED)
            self._metrics.transactions.rolled_back.inc()
        else:
            self._metrics.transactions.undecided.inc()
        return service.EndTransactionResponse(status=ok())


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
