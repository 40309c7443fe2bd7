"""Who sends messages of transactions, and ends them: once, again, sometimes both ways, or if asked.

Whatever was told of the first end must be so: each committed message is in its queue once, none is
that was rolled back, and an end that is said again is told the same, whoever leads or believes so.
What has no end is asked about, by whoever leads (`streams`), until its producer has said how it
ends: in a healed group each transaction ends.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Final

from dledger.broker.commands import SECRET_BYTES, CreateTopic, SetSecret
from dledger.broker.held_commands import encode_produce_held
from dledger.broker.held_refs import HELD_QUEUE, Fate, Kind, Ref
from dledger.broker.message import Columns
from dledger.broker.produce import encode_produce
from dledger.broker.results import Produced
from dledger.broker.topics import TRANSACTION
from dledger.requests.half_ends import commit, roll_back
from dledger.requests.transaction_ids import TransactionIds
from dledger.rpc.rocketmq_stubs import service
from dledger_sim.asking import Asker
from dledger_sim.audit import ids_stored
from dledger_sim.checkers import ViolationError
from dledger_sim.loop import MS, S
from dledger_sim.process import START_MS, Process, engine_of

if TYPE_CHECKING:
    from dledger_sim.cluster import Cluster

HALVES: Final = "halves"
PRODUCERS: Final = ("transactions-1", "transactions-2")
_CHECK_MS: Final = 1_500
"""How long after it is sent a half is asked about first."""
_SAID_AGAIN: Final = 0.5
_OTHERWISE: Final = 0.3
_LEFT_OPEN: Final = 0.3
_SILENT: Final = 0.5
_ENDED_S: Final = 60


class Halves(Asker):
    """All who send such messages.

    Attributes:
        ended: By message id, how each transaction has ended, as somebody was told.
        asked: How many questions have arrived.
    """

    def __init__(self, cluster: Cluster) -> None:
        making = CreateTopic(name=HALVES, type=TRANSACTION.name, queues=2).encode()
        super().__init__(cluster, "transactions", making)
        self._made = 0
        self._has_secret = False
        self._heard: set[str] = set()
        self.asked = 0
        self.ended: dict[str, Fate] = {}
        cluster.streams.hear = partial(self.loop.run, self._hear)

    def start(self) -> None:
        """Begin and end transactions from now on."""
        self.begin(*(partial(self._work, each) for each in PRODUCERS))

    async def _work(self, client: str) -> None:
        self._made += 1
        message_id, streams = f"{self._made}", self.cluster.streams
        streams.connect(client)
        if not self._has_secret:  # before: no half is held without an id, as sends have it
            command = SetSecret(secret=self.rng.randbytes(SECRET_BYTES)).encode()
            self._has_secret = await self.commit(command, grows=False) is not None
            return
        right_ms = START_MS + self.cluster.clock.now_us // MS
        held = await self.commit(_encode_half(client, message_id, right_ms))
        if not isinstance(held, Produced):
            return
        if held.queue_ids != (HELD_QUEUE,):
            raise ViolationError(f"half {message_id} is told to be in queue {held.queue_ids}")
        if self.rng.random() < _LEFT_OPEN:
            return
        await self.sleep(0, S)
        commits = self._decides(message_id)
        ends = [commits]
        if self.rng.random() < _SAID_AGAIN:
            ends.append(commits)
        if self.rng.random() < _OTHERWISE:
            ends.append(not commits)
        for each in ends:
            await self._end(message_id, Ref.unpack(held.offsets[0]), commits=each)

    @staticmethod
    def _decides(message_id: str) -> bool:
        """Return whether a transaction is to be committed: its producer has done its own work."""
        return int(message_id) % 2 == 0

    async def _end(self, message_id: str, ref: Ref, *, commits: bool) -> None:
        """Say an end; what it was told before, if anything, has to be told again."""
        fates = self.cluster.fates
        (fates.committed if commits else fates.rolled_back).add(message_id)

        async def end(process: Process) -> Fate:
            return await (commit if commits else roll_back)(engine_of(process), ref)

        before = await self.have(end)
        if not isinstance(before, Fate):
            return
        if before is Fate.UNKNOWN:
            raise ViolationError(f"transaction {message_id} is forgotten within its hour")
        wanted = Fate.DELIVERED if commits else Fate.CANCELLED
        told = wanted if before is Fate.HELD else before
        if self.ended.setdefault(message_id, told) is not told:
            raise ViolationError(f"transaction {message_id} ended {self.ended[message_id]}, {told}")

    def _hear(self, command: bytes, client: str) -> None:
        """Take a question, which only an entry of the log may be the reason of."""
        question = service.TelemetryCommand.FromString(command).recover_orphaned_transaction_command
        message_id = question.message.system_properties.message_id
        ref = self.cluster.fates.half_of.get(message_id)
        if ref is None or not self.cluster.fates.checks[ref]:
            raise ViolationError(f"{client} is asked about {message_id}, and no entry says so")
        self.asked += 1
        is_first = message_id not in self._heard
        self._heard.add(message_id)
        if not is_first or self.rng.random() >= _SILENT:  # one without a checker says nothing
            self.loop.create_task(self._answer(message_id, ref, question.transaction_id))

    async def _answer(self, message_id: str, ref: Ref, transaction_id: str) -> None:
        """End a transaction as its producer does that was asked, by the id that it was told."""

        async def read(process: Process) -> Ref:
            state = process.state.broker
            topic = state.topics.named(HALVES)
            ids = TransactionIds(state.secret, topic=HALVES, generation=topic.generation)
            return ids.decode(transaction_id)

        read_ref = await self.have(read)
        if read_ref not in (ref, None):
            raise ViolationError(f"the question about {ref} names {read_ref}")
        await self._end(message_id, ref, commits=self._decides(message_id))

    def demand_ended(self) -> None:
        """Demand that each transaction ends, as its producer says when it is asked."""

        def none_open() -> bool:
            serving = self.cluster.serving()
            return bool(serving) and not any(one.state.broker.held.halves for one in serving)

        self.cluster.within(_ENDED_S, none_open, "transactions have no end")

    def audit(self, processes: Sequence[Process]) -> None:
        """Check that queues have what was committed, once, and nothing that was rolled back."""
        stored = list(ids_stored(processes, HALVES))
        if len(stored) > len(set(stored)):
            raise ViolationError("a message of a transaction is delivered twice")
        for message_id, fate in self.ended.items():
            if (message_id in stored) is not (fate is Fate.DELIVERED):
                if fate is Fate.DELIVERED and self.cluster.options.kept_kib:
                    continue  # retention has let it go since
                raise ViolationError(f"transaction {message_id} ended {fate.name}, which is not so")


def _encode_half(client: str, message_id: str, right_ms: int) -> bytes:
    batch = Columns(message_ids=[message_id], bodies=[b"."], born_at_ms=[0])
    produce = encode_produce(batch, client_id=client, topic=HALVES)
    return encode_produce_held(Kind.HALF, [right_ms + _CHECK_MS], produce)
