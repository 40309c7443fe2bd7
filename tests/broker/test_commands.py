"""JSON commands: what is encoded is decoded, and anything else is refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dledger.broker import commands
from dledger.broker.command_frame import MalformedCommandError, frame_type, split
from dledger.broker.redelivery import Retries
from dledger.broker.topics import Compaction

_LEASES = (commands.LeaseRef(0, 5, 7), commands.LeaseRef(3, 1 << 60, 9))
_COMMANDS = [
    commands.CreateTopic(name="t", type="NORMAL", queues=8),
    commands.CreateTopic(
        name="t",
        type="NORMAL",
        queues=8,
        compaction=Compaction(min_lag_ms=1, tombstone_ms=2),
    ),
    commands.CreateGroup(name="g"),
    commands.Receive(
        group="g", topic="t", queue_id=2, any_queue=True, limit=32, invisible_ms=1,
        tags=("a", "ü"), attempt_id="x", client_id="c",
    ),
    commands.Receive(group="g", topic="t", queue_id=0, any_queue=False, limit=1, invisible_ms=1),
    commands.Ack(group="g", topic="t", leases=_LEASES),
    commands.ChangeInvisible(group="g", topic="t", lease=_LEASES[0], invisible_ms=5),
    commands.SetGroup(name="g", retries=Retries(5, (1000, 2000))),
    commands.Renew(group="g", topic="t", leases=_LEASES, invisible_ms=5, arrived=True),
    commands.Release(group="g", client_id="c"),
    commands.Retain(before_index=1 << 40),
    commands.ExpireGroups(before_ms=1 << 40),
    commands.DeleteTopic(name="t", generation=3),
    commands.DeleteGroup(name="g"),
    commands.SetSecret(secret=bytes(range(32))),
    commands.GrowTopic(name="t", queues=16),
]  # fmt: skip


@pytest.mark.parametrize("command", _COMMANDS, ids=lambda command: type(command).__name__)
def test_a_command_comes_out_as_it_went_in(command: commands.Command) -> None:
    """Encode and decode are each other's inverse."""
    data = command.encode()
    ((kind, start, end),) = split(data)

    assert commands.decode(kind, data[start:end]) == command
    assert frame_type(data) == kind


@given(st.integers(0, 255), st.binary(max_size=60))
def test_other_bytes_are_refused(kind: int, payload: bytes) -> None:
    """Bytes that are no command raise MalformedCommandError, and nothing else."""
    with pytest.raises(MalformedCommandError):
        commands.decode(kind, payload)


@pytest.mark.parametrize(
    "payload",
    [b"[]", b"{}", b'{"name":1}', b'{"name":null}', b'"name"', b"[" * 100_000],
)
def test_json_of_another_shape_is_refused(payload: bytes) -> None:
    """Well-formed JSON is not yet a command."""
    with pytest.raises(MalformedCommandError):
        commands.decode(3, payload)


def test_a_number_that_no_snapshot_could_hold_is_refused() -> None:
    """Sums of two numbers of 62 bits fit into the 64 bits of its columns."""
    with pytest.raises(MalformedCommandError, match="a whole number of 62 bits"):
        commands.decode(9, b'{"before": %d}' % (1 << 62))
