"""Strangers who guess: they store junk under the ids that a sender is about to use.

They know its client id and see how far it is. Each attempt is made once, and few: ids of others in
a client's window make room for fewer of its own, and what is sent again must still be remembered.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Final

from dledger.broker.message import Columns
from dledger.broker.produce import encode_produce
from dledger.broker.results import Produced
from dledger.errors import MessageIdConflict
from dledger_sim.cluster import MS, Cluster
from dledger_sim.producers import TOPIC, Answer
from dledger_sim.senders import Sender, Told, id_of

FIRST_STOLEN: Final = 1_000_000
"""The number of a stranger's first message; senders' are all below."""
_THINK_US: Final = 200 * MS


@dataclass(slots=True)
class Stranger:
    """Takes ids of one sender.

    Attributes:
        budget: How many messages it tries to store, at most.
        ahead: How far ahead of what its victim was told it guesses, at most.
    """

    victim: Sender
    cluster: Cluster
    rng: Random
    budget: int
    ahead: int
    sent: list[Told] = field(default_factory=list)

    def start(self) -> None:
        """Begin to guess: there is the topic."""
        self.cluster.clock.after(self.rng.randint(1, _THINK_US), self._guess)

    def _guess(self) -> None:
        left = self.budget - len(self.sent)
        if left <= 0 or self.victim.is_done:
            return
        count = self.rng.randint(1, min(2, left))
        first = self.victim.stored_up_to + 1 + self.rng.randint(0, self.ahead)
        queue_id = self.rng.randrange(self.victim.options.queues)
        number = FIRST_STOLEN + len(self.sent)
        tried = [Told(number + row, queue_id) for row in range(count)]
        self.sent += tried
        command = encode_produce(
            Columns(
                message_ids=[id_of(self.victim.name, first + row) for row in range(count)],
                bodies=[b"%d stolen" % told.number for told in tried],
                born_at_ms=[0] * count,
            ),
            client_id=self.victim.name,
            topic=TOPIC,
            queue_id=queue_id,
        )
        node = self.rng.choice(self.cluster.nodes())
        self.cluster.ask(node, command, lambda answer: _answered(tried, answer))
        self.start()


def _answered(tried: Sequence[Told], answer: Answer) -> None:
    """Note what became of a guess; of one that was not answered so it is unknown."""
    if not isinstance(answer, Produced):
        return
    for row, (told, offset) in enumerate(zip(tried, answer.offsets, strict=True)):
        if row in answer.conflicts:
            told.error = MessageIdConflict.of([row])
        else:
            told.offset = offset
