"""Which answers to push consumers' polls are known to have arrived, and which still move.

A push consumer's messages are leased for a short while, and kept for it from then on only if it is
known to have them: else it lives, and nobody gets them again. Only these say so:

- the server of its connection: a PING behind the answer came back (`door.proofs`), told on by the
  follower (`requests.passing_on`) or the door process to which the client is connected;
- an acknowledgement, or a change of invisibility, with a handle of that answer, unless the answer
  is not whole yet: clients hand messages on when they have all of an answer.

Where a server cannot tell, an answer counts as arrived when it was written: gRPC's own.
"""

from __future__ import annotations

from collections import OrderedDict, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple, TypeAlias

from dledger.broker.commands import LeaseRef
from dledger.broker.results import Received
from dledger.broker.state_changes import QueueKey
from dledger.common.limits import MAX_UNCONFIRMED_ANSWERS
from dledger.types import NodeId

Part: TypeAlias = tuple[QueueKey, int]
"""What an answer has of one queue: the queue, and the id of the RECEIVE."""


class Known(NamedTuple):
    """What became known; ids of RECEIVEs by queue.

    Attributes:
        arrived: Their clients have them.
        moving: Their clients are still being sent them.
    """

    arrived: Mapping[QueueKey, set[int]]
    moving: Mapping[QueueKey, set[int]]


class Arrivals:
    """What is known of the answers of one leader. No I/O, no clock."""

    def __init__(self) -> None:
        self._arrived: defaultdict[QueueKey, set[int]] = defaultdict(set)
        self._moving: defaultdict[QueueKey, set[int]] = defaultdict(set)
        self._unfinished: OrderedDict[Part, None] = OrderedDict()
        self._relayed: OrderedDict[tuple[NodeId, int], Sequence[Part]] = OrderedDict()

    def begun(self, parts: Iterable[Part]) -> None:
        """Note that an answer is about to be written."""
        for part in parts:
            self._unfinished[part] = None
            self._unfinished.move_to_end(part)
        while len(self._unfinished) > MAX_UNCONFIRMED_ANSWERS:
            self._unfinished.popitem(last=False)

    def written(self, parts: Iterable[Part]) -> None:
        """Note that all of an answer was handed to its connection, which says nothing else."""
        for part in parts:
            self._unfinished.pop(part, None)

    def arrived(self, parts: Iterable[Part]) -> None:
        """Note that a client has an answer."""
        for key, receive_id in parts:
            self._arrived[key].add(receive_id)

    def moves(self, parts: Iterable[Part]) -> None:
        """Note that bytes of an answer were taken on their way in the last seconds."""
        for key, receive_id in parts:
            self._moving[key].add(receive_id)

    def handled(self, group: str, topic: str, leases: Iterable[LeaseRef]) -> None:
        """Note that a client sent handles back: it has the answers that they came with."""
        for lease in leases:
            key = (group, topic, lease.queue_id)
            if (key, lease.receive_id) not in self._unfinished:
                self._arrived[key].add(lease.receive_id)

    def relayed(self, through: NodeId, number: int, parts: Sequence[Part]) -> None:
        """Note that a follower passes an answer on under this number.

        Beyond a limit the oldest are dropped, as if they were lost.
        """
        self._relayed[through, number] = parts
        if len(self._relayed) > MAX_UNCONFIRMED_ANSWERS:
            self._relayed.popitem(last=False)

    def told(self, through: NodeId, *, arrived: Iterable[int], moving: Iterable[int]) -> None:
        """Take in a follower's report of answers, by their numbers."""
        for number in arrived:
            self.arrived(self._relayed.pop((through, number), ()))
        for number in moving:
            self.moves(self._relayed.get((through, number), ()))

    def take(self) -> Known:
        """Return what became known since this was asked last."""
        arrived, self._arrived = self._arrived, defaultdict(set)
        moving, self._moving = self._moving, defaultdict(set)
        return Known(arrived, moving)

    def forget(self) -> None:
        """Forget everything: this node does not lead."""
        self.take()
        self._unfinished.clear()
        self._relayed.clear()


def parts_of(group: str, topic: str, received: Received) -> list[Part]:
    """Return the parts of an answer."""
    queue_ids = {delivery.queue_id for delivery in received.deliveries}
    return [((group, topic, each), received.receive_id) for each in queue_ids]
