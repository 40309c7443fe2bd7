"""How much of a volume messages may have that wait for their time."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from dledger.broker.commands import (
    Ack,
    CancelHeld,
    CheckHeld,
    CreateTopic,
    LeaseRef,
    ResumeHeld,
    SeekGroup,
)
from dledger.broker.dead_letter import encode_dead_letter
from dledger.broker.held_commands import What, encode_produce_held, encode_release_held
from dledger.broker.held_refs import Kind, Ref
from dledger.broker.message import Columns, Message
from dledger.broker.produce import encode_produce
from dledger.broker.state import BrokerState
from dledger.peers.handshake import ClientAddress
from dledger.server.engine import HELD_PERCENT, NodeEngine
from dledger.types import Entry, EntryKind, MovedFrom, NodeId, Typed

_VOLUME_BYTES = 10_000


class _Submitted:
    """What a driver is told of commands."""

    def __init__(self) -> None:
        self.grows: list[bool] = []

    def __call__(self, command: bytes, *, grows: bool, **_: Any) -> None:
        self.grows.append(grows)


def _engine(volume_bytes: int | None = _VOLUME_BYTES) -> NodeEngine:
    disk = None if volume_bytes is None else SimpleNamespace(volume_bytes=volume_bytes)
    driver: Any = SimpleNamespace(room=SimpleNamespace(disk=disk), submit=_Submitted())
    peers: Any = None
    engine = NodeEngine(
        group="g",
        name="g-0",
        node_id=NodeId("a"),
        state=BrokerState(),
        peers=peers,
        clients=ClientAddress(host="127.0.0.1", port=1, tls_port=0),
    )
    engine.attach(driver)
    return engine


def _hold(engine: NodeEngine, size_bytes: int) -> None:
    state = engine.state
    batch = Columns(message_ids=["1"], bodies=[bytes(size_bytes)], born_at_ms=[0])
    produce = encode_produce(batch, client_id="c", topic="d")
    for command in (
        CreateTopic(name="d", type="DELAY", queues=1).encode(),
        encode_produce_held(Kind.TIMER, [1], produce),
    ):
        index = state.applied_index + 1
        state.apply(
            Entry(
                term=1,
                index=index,
                kind=EntryKind.DATA,
                timestamp_ms=1,
                crc32c=0,
                data=command,
            )
        )


def test_held_messages_have_a_share_of_the_volume() -> None:
    """Up to it they are taken; beyond it who sends one is told what takes the room."""
    engine, other = _engine(), _engine()
    share = _VOLUME_BYTES * HELD_PERCENT // 100

    _hold(engine, share // 2)  # with what it takes beside its body
    _hold(other, share + 1)

    assert engine.holding_refusal() == ""
    assert f"more than {HELD_PERCENT} % of the volume" in other.holding_refusal()


def test_what_makes_no_room_is_told_as_it_is() -> None:
    """Where retention has found that nothing can go."""
    engine = _engine()
    engine.state.held.full = "nothing can go for room"

    assert engine.holding_refusal() == "nothing can go for room"


def test_a_disk_that_was_not_seen_yet_refuses_nothing() -> None:
    """A node has just started."""
    engine = _engine(None)
    _hold(engine, 100_000)

    assert engine.holding_refusal() == ""


def test_a_full_disk_refuses_what_takes_room_and_takes_what_frees_it() -> None:
    """A send for later and what is due wait for room; a recall, an ack and a seek need none."""
    engine = _engine()
    batch = Columns(message_ids=["1"], bodies=[b"."], born_at_ms=[0])
    produce = encode_produce(batch, client_id="c", topic="d")
    moved = MovedFrom(topic="d", generation=1, queue_id=0, offset=0, stored_at_ms=1)
    dead = Message(message_id="1", body=b".", typed=Typed(moved_from=moved))
    grow = (
        produce,
        encode_produce_held(Kind.TIMER, [1], produce),
        encode_release_held(What.DELIVER, [Ref(1, 1)], batch, topic="d", generation=1),
        encode_dead_letter("g", 1, dead, born_host=""),
    )
    free = (
        CancelHeld(refs=(Ref(1, 1),)),
        ResumeHeld(cancels=True),
        CheckHeld(refs=(Ref(1, 1),), next_ms=1),
        Ack(group="g", topic="d", leases=(LeaseRef(0, 0, 1),)),
        SeekGroup(group="g", topic="d", generation=1, offsets=((0, 0),)),
    )

    for command in (*grow, *(each.encode() for each in free)):
        engine.submit(command)

    driver: Any = engine._driver
    assert driver.submit.grows == [True] * len(grow) + [False] * len(free)
