"""Attempts of a group: what is held is given again, what is not takes no room and does not show."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dledger.broker import attempts
from dledger.broker.attempts import Attempts, QueuePosition
from dledger.broker.snapshot_codec import Reader
from dledger.broker.state import BrokerState
from tests.broker.log import Log, offsets

_STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("ask"), st.integers(0, 5), st.integers(1, 3)),
        st.tuples(st.just("end"), st.integers(0, 60), st.just(0)),
        st.tuples(st.just("restart"), st.just(0), st.just(0)),
    ),
    max_size=60,
)


@given(_STEPS, st.integers(1, 6), st.integers(0, 5))
def test_attempts_are_those_of_a_group_that_sweeps_nothing(
    steps: list[tuple[str, int, int]], most: int, swept_at: int
) -> None:
    """Whenever room is given back, and through a snapshot: the same is recalled."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(attempts, "MAX_ATTEMPTS_REMEMBERED", most)
        patch.setattr(attempts, "_SWEPT_AT_LEAST", swept_at)
        found, model, leases = (
            Attempts(),
            list[tuple[str, int, list[QueuePosition]]](),
            dict[QueuePosition, int](),
        )

        def holds(topic: str, receive_id: int, place: QueuePosition) -> bool:
            return topic == "t" and leases.get(place) == receive_id

        for number, (step, chosen, count) in enumerate(steps, start=1):
            if step == "ask":
                places = [(chosen, 10 * number + row) for row in range(count)]
                leases |= dict.fromkeys(places, number)
                found.remember("t", str(chosen), number, places, holds)
                model.append((str(chosen), number, places))
            elif step == "end" and leases:
                del leases[list(leases)[chosen % len(leases)]]
            else:
                before, data = found.canonical(holds), b"".join(found.encoded(holds))
                found = Attempts.read(Reader(data))
                assert found.canonical(holds) == before
            newest = {key: (receive_id, places) for key, receive_id, places in model[-most:]}
            for key in map(str, range(6)):
                receive_id, places = newest.get(key, (0, []))
                held = [place for place in places if place in leases]
                assert found.recall("t", key, holds) == ((receive_id, held) if held else None)


def test_a_group_that_has_acked_all_remembers_next_to_nothing() -> None:
    """A thousand receives of 32 were 3.8 MB a group, for ever."""
    log = Log()
    log.create()
    for receive in range(200):
        log.produce(*["x"] * 32)
        log.ack(log.receive(32, attempt_id=str(receive)))

    group = log.state.groups._groups["g"]

    assert len(group._attempts) <= attempts._SWEPT_AT_LEAST
    assert group.canonical()[-1] == [200, []]


def test_an_attempt_is_remembered_while_one_of_its_messages_is_its_own() -> None:
    """Others come and go; a snapshot has it, too."""
    log = Log()
    log.create()
    log.produce("a", "b")
    held = log.receive(2, attempt_id="held", invisible_ms=60_000)
    log.ack(held, 0)
    for receive in range(50):
        log.produce("x")
        log.ack(log.receive(1, attempt_id=str(receive)))

    log.state.replace(BrokerState.decode(log.state.encode()))

    assert offsets(log.receive(2, attempt_id="held")) == [1]
