"""Messages that wait for their time in a simulated group: the world `timers`, and its checker."""

from __future__ import annotations

from typing import Any

import pytest
from crc32c import crc32c

from dledger.broker.commands import CancelHeld, CreateTopic
from dledger.broker.held_commands import What, encode_produce_held, encode_release_held
from dledger.broker.held_refs import Kind, Ref
from dledger.broker.message import Columns
from dledger.broker.produce import encode_produce
from dledger.broker.state import BrokerState
from dledger.types import Entry, EntryKind, Typed
from dledger_sim.checkers import ViolationError
from dledger_sim.fates import Fates
from dledger_sim.options import Options
from dledger_sim.process import START_MS
from dledger_sim.run import Run

_DUE_MS = START_MS + 5_000


class _Log:
    """A log that is applied and checked as it grows."""

    def __init__(self) -> None:
        self.state, self.fates = BrokerState(), Fates()
        self.apply(CreateTopic(name="d", type="DELAY", queues=1).encode())

    def apply(self, command: bytes, right_ms: int = START_MS, says: Any = None) -> Any:
        """Apply an entry; *says*: what a node that is wrong says instead of its result."""
        entry = Entry(
            term=1,
            index=self.state.applied_index + 1,
            kind=EntryKind.DATA,
            timestamp_ms=START_MS,
            crc32c=crc32c(command),
            data=command,
        )
        results = self.state.apply(entry) if says is None else [says]
        self.fates.apply(entry, results, right_ms)
        return results[0]

    def hold(self) -> Ref:
        batch = _batch()
        produce = encode_produce(batch, client_id="c", topic="d")
        held = self.apply(encode_produce_held(Kind.TIMER, [_DUE_MS], produce))
        return Ref.unpack(held.offsets[0])


def _batch() -> Columns:
    return Columns(
        message_ids=["1"], bodies=[b"."], born_at_ms=[0], typed=[Typed(deliver_at_ms=_DUE_MS)]
    )


def _release(ref: Ref) -> bytes:
    return encode_release_held(What.DELIVER, [ref], _batch(), topic="d", generation=1)


def test_a_message_that_is_due_may_go() -> None:
    """By every right clock."""
    log = _Log()
    ref = log.hold()

    log.apply(_release(ref), _DUE_MS)

    assert log.fates.delivered == {ref}


def test_a_message_that_goes_early_is_a_violation() -> None:
    """By a millisecond."""
    log = _Log()
    ref = log.hold()

    with pytest.raises(ViolationError, match="1 ms before its time"):
        log.apply(_release(ref), _DUE_MS - 1)


def test_a_message_that_goes_twice_is_a_violation() -> None:
    """Whoever proposed it: the state must have passed it over."""
    log = _Log()
    ref = log.hold()
    released = log.apply(_release(ref), _DUE_MS)
    log.apply(_release(ref), _DUE_MS)  # as two leaders do
    log.state.applied_index += 1

    with pytest.raises(ViolationError, match="delivered or recalled before"):
        log.apply(_release(ref), _DUE_MS, says=released)


def test_a_recalled_message_that_goes_is_a_violation() -> None:
    """One or the other."""
    log = _Log()
    ref = log.hold()
    cancelled = log.apply(CancelHeld(refs=(ref,)).encode())
    log.apply(_release(ref), _DUE_MS)

    assert log.fates.recalled == {ref}
    with pytest.raises(ViolationError, match="delivered or recalled before"):
        log.apply(CancelHeld(refs=(ref,)).encode(), says=cancelled)


def test_the_world_has_right_clocks_and_changes_of_leaders() -> None:
    """So that there is something to be early by."""
    worlds = [Options.of(seed, "timers") for seed in range(40)]

    assert all(one.timed and one.has_right_clocks for one in worlds)
    assert any(one.depose_s for one in worlds)
    assert any(one.kept_kib for one in worlds)


@pytest.mark.parametrize("seed", [2, 5])
def test_all_that_is_due_is_delivered_once(seed: int) -> None:
    """Through clocks that leap by days, crashes and leaders that are cut off."""
    outcome = Run(seed, Options.of(seed, "timers")).run()

    assert outcome.timed
