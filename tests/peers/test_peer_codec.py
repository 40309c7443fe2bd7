"""Raft messages as bytes: round trips, and refusal of everything else."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from typing import Any, cast

import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from dledger.common.reports import Report
from dledger.errors import NewerCommand
from dledger.peers.peer_codec import (
    BadFrame,
    Encoder,
    UnknownMessage,
    decode,
    decode_entries,
    encode,
    encode_entries,
)
from dledger.raft.messages import (
    AppendRequest,
    AppendResponse,
    DiscardRequest,
    DiscardResponse,
    HeartbeatRequest,
    HeartbeatResponse,
    InstallSnapshotRequest,
    InstallSnapshotResponse,
    Message,
    PreVoteRequest,
    PreVoteResponse,
    TimeoutNow,
    VoteRequest,
    VoteResponse,
)
from dledger.replica.reports import ReportRequest, ReportResponse
from dledger.types import MAX_NUMBER, Entry, EntryKind, NodeId, SnapshotInfo

ENDS = {"sender": NodeId("a"), "recipient": NodeId("b")}
NUMBER = st.integers(min_value=0, max_value=MAX_NUMBER - 1)
REPORT = Report(incarnation="a", unix_ms=1_700_000_000_000)
U32 = st.integers(min_value=0, max_value=2**32 - 1)


def entry(index: int, data: bytes) -> Entry:
    return Entry(
        term=3,
        index=index,
        kind=EntryKind.DATA,
        timestamp_ms=1_700_000_000_000,
        crc32c=crc32c(data),
        data=data,
    )


@given(
    st.tuples(NUMBER, NUMBER, NUMBER),
    U32,
    st.booleans(),
    st.lists(st.binary(max_size=300), max_size=4),
)
def test_every_message_comes_out_as_it_went_in(
    numbers: tuple[int, int, int], crc: int, flag: bool, bodies: list[bytes]
) -> None:
    """For all values of all fields."""
    term, one, two = numbers
    previous = min(one, 2**61)
    entries = tuple(entry(previous + 1 + n, body) for n, body in enumerate(bodies))
    messages: list[Message] = [
        PreVoteRequest(**ENDS, term=term, last_index=one, last_term=two, last_chain=crc),
        PreVoteResponse(**ENDS, term=term, granted=flag),
        VoteRequest(
            **ENDS, term=term, last_index=one, last_term=two, last_chain=crc, transfer=flag
        ),
        VoteResponse(**ENDS, term=term, granted=flag),
        AppendRequest(
            **ENDS,
            term=term,
            previous_index=previous,
            previous_term=two,
            previous_chain=crc,
            last_chain=crc ^ 1,
            commit_index=one,
            entries=entries,
        ),
        AppendResponse(
            **ENDS,
            term=term,
            success=flag,
            match_index=one,
            match_chain=crc,
            conflict_term=two,
            conflict_index=one,
        ),
        HeartbeatRequest(**ENDS, term=term, commit_index=one, commit_chain=crc, round=two),
        HeartbeatResponse(**ENDS, term=term, round=one),
        TimeoutNow(**ENDS, term=term),
        DiscardRequest(**ENDS, term=term, index=one, entry_term=two, firm=flag),
        DiscardResponse(**ENDS, term=term, index=one, entry_term=two, firm=flag, lacks=not flag),
        InstallSnapshotRequest(
            **ENDS,
            term=term,
            info=SnapshotInfo(
                last_index=one, last_term=two, last_chain=crc, size_bytes=one, crc32c=two % 2**32
            ),
            offset=two,
            data=b"".join(bodies),
        ),
        InstallSnapshotResponse(**ENDS, term=term, last_index=one, accepted=flag, offset=two),
        ReportRequest(**ENDS, term=term, round=one, report=REPORT),
        ReportResponse(**ENDS, term=term, round=two, report=REPORT),
    ]

    assert [decode(encode(message), **ENDS) for message in messages] == messages


@given(st.binary(max_size=200))
def test_other_bytes_are_refused(frame: bytes) -> None:
    """No bytes from a peer crash a node: a message comes out, or one of two errors."""
    with contextlib.suppress(BadFrame, UnknownMessage):
        decode(frame, **ENDS)


def test_a_frame_cut_short_anywhere_is_refused() -> None:
    """A truncated batch is never taken for a shorter one."""
    frame = encode(
        AppendRequest(
            **ENDS,
            term=3,
            previous_index=0,
            previous_term=0,
            previous_chain=0,
            last_chain=0,
            commit_index=0,
            entries=(entry(1, b"first"), entry(2, b"second")),
        )
    )

    for length in range(len(frame)):
        with pytest.raises(BadFrame):
            decode(frame[:length], **ENDS)


def test_an_entry_whose_data_changed_on_the_way_is_refused() -> None:
    """The CRC is the proposer's."""
    frame = bytearray(
        encode(
            AppendRequest(
                **ENDS,
                term=3,
                previous_index=0,
                previous_term=0,
                previous_chain=0,
                last_chain=0,
                commit_index=0,
                entries=(entry(1, b"payload"),),
            )
        )
    )
    frame[-1] ^= 1

    with pytest.raises(BadFrame, match="CRC32C"):
        decode(bytes(frame), **ENDS)


def test_entries_that_do_not_follow_each_other_are_refused() -> None:
    """The core may rely on their order."""
    with pytest.raises(BadFrame, match="expected entry 1, got entry 5"):
        decode(
            encode(
                AppendRequest(
                    **ENDS,
                    term=3,
                    previous_index=0,
                    previous_term=0,
                    previous_chain=0,
                    last_chain=0,
                    commit_index=0,
                    entries=(entry(5, b"x"),),
                )
            ),
            **ENDS,
        )


@pytest.mark.found
@pytest.mark.parametrize("number", [2**62, 2**63 - 1, 2**64 - 1])
@pytest.mark.parametrize("field", ["term", "last_index", "last_term"])
def test_a_number_that_no_group_comes_to_is_refused(field: str, number: int) -> None:
    """One more would not fit any more, and stopped every node that it came to (found: S5)."""
    sound = VoteRequest(
        sender=NodeId("a"),
        recipient=NodeId("b"),
        term=3,
        last_index=1,
        last_term=1,
        last_chain=0,
    )
    fields: dict[str, Any] = {field: number}
    frame = encode(replace(sound, **fields))

    with pytest.raises(BadFrame, match=f"the number {number} is out of range"):
        decode(frame, **ENDS)


@pytest.mark.found
@pytest.mark.parametrize("term", [2**62, 2**64 - 1])
def test_entries_of_such_a_term_are_refused(term: int) -> None:
    """In an append as in a repair."""
    odd = replace(entry(8, b"x"), term=term)

    with pytest.raises(BadFrame, match="out of range"):
        decode(encode(append((odd,), recipient="b")), **ENDS)
    with pytest.raises(BadFrame, match="out of range"):
        decode_entries(encode_entries((odd,)))


def test_entries_alone_come_back_and_damage_is_refused() -> None:
    """As a peer sends them for a repair."""
    sent = tuple(entry(index, b"body") for index in (3, 4, 9))
    frame = encode_entries(sent)

    assert decode_entries(frame) == sent
    assert decode_entries(encode_entries(())) == ()
    for damaged in (frame[:-1], frame[:2], frame + b"x", frame[:-1] + b"?"):
        with pytest.raises(BadFrame):
            decode_entries(damaged)


def test_a_message_of_a_type_to_come_is_no_damage() -> None:
    """Its sender is newer; the stream goes on without it."""
    frame = bytearray(encode(TimeoutNow(**ENDS, term=3)))
    frame[0] = 99

    with pytest.raises(UnknownMessage, match="type 99"):
        decode(bytes(frame), **ENDS)


@pytest.mark.parametrize(
    ("kind", "data", "what"),
    [
        (7, b"", "an entry of type 7"),
        (1, b'{"group":"g","voters":[],"witnesses":[]}', "a membership with 'witnesses'"),
        (1, b'{"group":"g","voters":[{"id":"a","zone":"z"}]}', "a membership with 'zone'"),
    ],
)
def test_an_entry_that_consensus_does_not_know_is_never_taken(
    kind: int, data: bytes, what: str
) -> None:
    """A membership is in force before it is committed: the node stops before it counts."""
    odd = replace(entry(8, data), kind=cast("EntryKind", kind))

    with pytest.raises(NewerCommand, match=f"entry 8 is of a newer version: {what} is unknown"):
        decode(encode(append((odd,), recipient="b")), **ENDS)


@pytest.mark.parametrize("data", [b"", b"null", b"[]", b'{"group":"g","voters":3}', b"[" * 9999])
def test_a_membership_that_no_version_reads_is_no_newer_one(data: bytes) -> None:
    """The core ignores it, as it does in all versions."""
    odd = replace(entry(8, data), kind=EntryKind.MEMBERSHIP)

    decode(encode(append((odd,), recipient="b")), **ENDS)


def test_an_append_to_several_followers_is_encoded_once() -> None:
    """The frame names no recipient, so that the same bytes go to all."""
    encoder, entries = Encoder(), (entry(8, b"x" * 100), entry(9, b""))

    first = encoder.encode(append(entries, recipient="b"))
    second = encoder.encode(append((*entries,), recipient="c"))

    assert second is first == encode(append(entries, recipient="c"))


@given(st.data())
def test_an_encoder_that_remembers_says_what_one_without_memory_says(data: st.DataObject) -> None:
    """Whatever was sent before: terms, places, commit indexes and entries that look alike."""
    few = [entry(8, b"x"), entry(8, b"y"), entry(8, b"x")]
    encoder = Encoder()
    small = st.integers(0, 1)
    for _ in range(data.draw(st.integers(1, 12))):
        message = append(
            tuple(data.draw(st.lists(st.sampled_from(few), max_size=2))),
            recipient=data.draw(st.sampled_from("bc")),
            term=data.draw(small),
            previous_index=data.draw(small),
            previous_term=data.draw(small),
            previous_chain=data.draw(small),
            last_chain=data.draw(small),
            commit_index=data.draw(small),
        )
        assert encoder.encode(message) == encode(message)


def append(entries: tuple[Entry, ...], *, recipient: str, **numbers: int) -> AppendRequest:
    fields = {
        "term": 3,
        "previous_index": 7,
        "previous_term": 3,
        "previous_chain": 5,
        "last_chain": 6,
        "commit_index": 6,
    } | numbers
    return AppendRequest(sender=NodeId("a"), recipient=NodeId(recipient), entries=entries, **fields)
