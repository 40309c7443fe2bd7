"""Who sends messages to be delivered later, and recalls some of them.

What a sender was told of a message must be so (`fates`), and once a group is healed, all that is
due is delivered.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from dledger.broker.commands import CancelHeld, CreateTopic
from dledger.broker.held_commands import encode_produce_held
from dledger.broker.held_refs import HELD_QUEUE, Fate, Kind, Ref
from dledger.broker.message import Columns
from dledger.broker.produce import encode_produce
from dledger.broker.results import HeldCancelled, Produced
from dledger.broker.topics import DELAY
from dledger.types import Typed
from dledger_sim.asking import Asker
from dledger_sim.audit import ids_stored
from dledger_sim.checkers import ViolationError
from dledger_sim.loop import MS, S
from dledger_sim.process import START_MS, Process

if TYPE_CHECKING:
    from dledger_sim.cluster import Cluster

TIMED: Final = "timed"
_CLIENT: Final = "timers"
_AHEAD_MS: Final = (-200, 4_000)
"""How long after they are sent messages are due."""
_BATCH: Final = 3
_QUEUES: Final = 2
_RECALLS: Final = 0.3
_DELIVERED_S: Final = 30


class Timers(Asker):
    """All who send such messages."""

    def __init__(self, cluster: Cluster) -> None:
        super().__init__(
            cluster, _CLIENT, CreateTopic(name=TIMED, type=DELAY.name, queues=_QUEUES).encode()
        )
        self._made = 0
        self._told: dict[str, tuple[int, int]] = {}
        self._recalled: dict[str, bool] = {}

    def start(self) -> None:
        """Send and recall from now on."""
        self.begin(self._send, self._send)

    async def _send(self) -> None:
        """Send some messages, and perhaps recall the first of them."""
        self._made += 1
        right_ms = START_MS + self.cluster.clock.now_us // MS
        ids = [f"{self._made}.{row}" for row in range(self.rng.randint(1, _BATCH))]
        due_ms = [right_ms + self.rng.randint(*_AHEAD_MS) for _ in ids]
        stored = await self.commit(_encode_held(ids, due_ms))
        if not isinstance(stored, Produced):
            return
        places = list(zip(stored.queue_ids, stored.offsets, strict=True))
        for message_id, place in zip(ids, places, strict=True):
            if self._told.setdefault(message_id, place) != place:
                raise ViolationError(f"{message_id} is told {self._told[message_id]} and {place}")
        if self.rng.random() < _RECALLS:
            await self.sleep(0, 3 * S)
            await self._recall(ids[0])

    async def _recall(self, message_id: str) -> None:
        queue_id, packed = self._told[message_id]
        if queue_id != HELD_QUEUE:
            return
        answer = await self.commit(CancelHeld(refs=(Ref.unpack(packed),)).encode(), grows=False)
        if isinstance(answer, HeldCancelled):
            is_recalled = answer.before[0] in (Fate.HELD, Fate.CANCELLED)
            if answer.before[0] is not Fate.UNKNOWN:
                self._recalled[message_id] = is_recalled

    def demand_delivered(self) -> None:
        """Demand that all that is due is delivered, and that what senders were told is so."""
        fates, cluster = self.cluster.fates, self.cluster

        def nothing_held() -> bool:
            serving = cluster.serving()
            held = [one.state.broker.held for one in serving]
            return bool(serving) and not any(each.count - each.halves for each in held)

        cluster.within(_DELIVERED_S, nothing_held, "messages that are due are not delivered")
        for message_id, (queue_id, packed) in self._told.items():
            if queue_id != HELD_QUEUE:
                continue
            ref = Ref.unpack(packed)
            is_recalled = self._recalled.get(message_id)
            if ref not in fates.delivered and ref not in fates.recalled:
                raise ViolationError(f"{message_id} was to be delivered, and never was")
            if is_recalled is not None and is_recalled != (ref in fates.recalled):
                raise ViolationError(
                    f"{message_id}: whoever recalled it was told "
                    f"{'that it was' if is_recalled else 'that it was too late'}, which is not so"
                )

    def audit(self, processes: Sequence[Process]) -> None:
        """Check that no message is in a queue twice, nor one that was recalled."""
        seen = set[str]()
        for message_id in ids_stored(processes, TIMED):
            if message_id in seen or self._recalled.get(message_id):
                raise ViolationError(f"{message_id} is delivered twice, or was recalled")
            seen.add(message_id)


def _encode_held(ids: Sequence[str], due_ms: Sequence[int]) -> bytes:
    batch = Columns(
        message_ids=ids,
        bodies=[b"."] * len(ids),
        born_at_ms=[0] * len(ids),
        typed=[Typed(deliver_at_ms=each) for each in due_ms],
    )
    produce = encode_produce(batch, client_id=_CLIENT, topic=TIMED)
    return encode_produce_held(Kind.TIMER, due_ms, produce)
