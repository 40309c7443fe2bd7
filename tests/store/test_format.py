"""The bytes: round trips, other alphabets, and torn input at every byte."""

from __future__ import annotations

from array import array

import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from dledger.errors import InvalidArgument, NewerFormat
from dledger.store.format import (
    SEGMENT_HEADER_BYTES,
    SLOT_BYTES,
    Base,
    Mark,
    SegmentHeader,
    SegmentIndex,
    check_entry,
    decode_body,
    decode_index,
    decode_mark,
    decode_record_header,
    decode_segment_header,
    encode_index,
    encode_mark,
    encode_records,
    encode_segment_header,
    record_size,
)
from dledger.types import Entry, EntryKind
from tests.store.harness import entry

U32 = st.integers(0, 2**32 - 1)
U64 = st.integers(0, 2**64 - 1)
BODIES = st.binary(max_size=70)

HEADER = SegmentHeader(group_id="gruppe-ß-群", node_id="knoten-é", first_index=7, previous_chain=9)


def joined(batch: list[Entry], chain: int = 0) -> bytes:
    return b"".join(encode_records(batch, chain=chain, position=4096).buffers)


@given(
    body=BODIES,
    term=U64,
    index=U64,
    timestamp=st.integers(-(2**63), 2**63 - 1),
    crc=U32,
    kind=st.sampled_from(EntryKind),
    chain=U32,
)
def test_record_header_round_trips(
    *, body: bytes, term: int, index: int, timestamp: int, crc: int, kind: EntryKind, chain: int
) -> None:
    """Every field comes back, whatever its value."""
    one = Entry(term=term, index=index, kind=kind, timestamp_ms=timestamp, crc32c=crc, data=body)

    found = decode_record_header(joined([one], chain), 0, chain=chain, index=index)

    assert found[1:] == (len(body), term, timestamp, crc, kind)


@given(bodies=st.lists(BODIES, min_size=1, max_size=8), chain=U32)
def test_records_follow_each_other_at_multiples_of_eight(bodies: list[bytes], chain: int) -> None:
    """Positions, chains and sizes that the encoder reports are those of the bytes."""
    batch = [entry(index, data=body) for index, body in enumerate(bodies, 1)]

    encoded = encode_records(batch, chain=chain, position=4096)

    data = memoryview(b"".join(encoded.buffers))
    assert len(data) == encoded.size_bytes == sum(record_size(len(body)) for body in bodies)
    for number, one in enumerate(batch):
        at = encoded.positions[number] * 8 - 4096
        header = decode_record_header(data, at, chain=chain, index=one.index)
        assert decode_body(data, at, header) == one.data
        assert header.chain == encoded.chains[number]
        chain = header.chain


def test_bodies_are_passed_through_and_not_copied() -> None:
    """The buffers of a write hold the entries' own bytes objects."""
    one = entry(1, data=b"x" * 100)

    assert any(buffer is one.data for buffer in encode_records([one], chain=0, position=0).buffers)


@given(body=BODIES, cut=st.integers(1, 200))
def test_torn_record_is_rejected_at_every_byte(body: bytes, cut: int) -> None:
    """No proper prefix of a record (without its padding) is taken for the record."""
    whole = joined([entry(1, data=body)])[: 40 + len(body)]
    torn = whole[: max(0, len(whole) - cut)]

    with pytest.raises(ValueError, match=r"ends within|body has"):
        decode_body(memoryview(torn), 0, decode_record_header(torn, 0, chain=0, index=1))


def test_flipped_bit_of_a_record_is_rejected_at_every_position() -> None:
    """Header and body are covered by CRCs, whichever bit is flipped."""
    whole = joined([entry(1, data="grüße".encode())])
    for bit in range((40 + 7) * 8):
        rotten = bytearray(whole)
        rotten[bit // 8] ^= 1 << bit % 8

        with pytest.raises(ValueError, match="CRC"):
            decode_body(
                memoryview(rotten), 0, decode_record_header(bytes(rotten), 0, chain=0, index=1)
            )


def test_record_fits_behind_its_predecessor_only() -> None:
    """The same record behind another chain value is not valid."""
    data = joined([entry(1)], chain=5)

    with pytest.raises(ValueError, match="chain CRC"):
        decode_record_header(data, 0, chain=6, index=1)


def test_zeros_are_never_a_record() -> None:
    """A chain value for which zeros have a fitting CRC does not make index 0 valid."""
    with pytest.raises(ValueError, match="expected"):
        decode_record_header(bytes(40), 0, chain=0, index=1)


def test_unknown_record_type_is_rejected() -> None:
    """A newer version wrote it, for the chain fits: that is no damage, which would be cut."""
    one = entry(1)
    odd = Entry(term=1, index=1, kind=9, timestamp_ms=0, crc32c=0, data=b"")  # type: ignore[arg-type]

    with pytest.raises(NewerFormat, match="entry 1 is of a newer version: type 9"):
        decode_record_header(joined([odd]), 0, chain=0, index=one.index)


def test_segment_header_round_trips_in_any_alphabet() -> None:
    """Ids are UTF-8."""
    assert decode_segment_header(encode_segment_header(HEADER)) == HEADER


def test_torn_segment_header_is_rejected_at_every_byte() -> None:
    """A header page of which only a prefix was written, the rest being zeros, is not valid."""
    page = encode_segment_header(HEADER)
    for size in range(224):
        if not any(page[size:224]):
            continue
        with pytest.raises(ValueError, match="CRC"):
            decode_segment_header(page[:size].ljust(SEGMENT_HEADER_BYTES, b"\0"))


def test_segment_header_of_another_version_names_both() -> None:
    """A newer format is refused, not misread."""
    page = bytearray(encode_segment_header(HEADER))
    page[8] = 4
    page[220:224] = crc32c(page[:220]).to_bytes(4, "little")

    with pytest.raises(NewerFormat, match="format 4, and this one reads up to format 3"):
        decode_segment_header(bytes(page))


def test_id_that_does_not_fit_is_refused() -> None:
    """Nothing is cut silently."""
    with pytest.raises(InvalidArgument, match="has 129 bytes, at most 128 fit"):
        encode_segment_header(
            SegmentHeader(group_id="g" * 129, node_id="n", first_index=1, previous_chain=0)
        )


@given(
    positions=st.lists(st.tuples(U32, U32), max_size=9),
    first=U64,
    runs=st.lists(st.tuples(U64, U64), max_size=3),
    memberships=st.lists(U64, max_size=3),
)
def test_index_round_trips(
    positions: list[tuple[int, int]],
    first: int,
    runs: list[tuple[int, int]],
    memberships: list[int],
) -> None:
    """Columns come back as they were."""
    index = SegmentIndex(
        first_index=first,
        previous_chain=3,
        end=4096,
        positions=array("I", [p for p, _ in positions]),
        chains=array("I", [c for _, c in positions]),
        runs=tuple(runs),
        memberships=tuple(memberships),
    )

    assert decode_index(encode_index(index)) == index


def test_torn_or_rotten_index_is_rejected_at_every_byte() -> None:
    """A damaged index file is never used; it is rebuilt."""
    index = SegmentIndex(
        first_index=1,
        previous_chain=3,
        end=4200,
        positions=array("I", [512, 520]),
        chains=array("I", [1, 2]),
        runs=((1, 1),),
        memberships=(2,),
    )
    whole = encode_index(index)
    for at in range(len(whole)):
        rotten = bytearray(whole)
        rotten[at] ^= 0x40
        for damaged in (bytes(rotten), whole[:at]):
            with pytest.raises(ValueError, match=r"CRC|bytes"):
                decode_index(damaged)


def test_watermark_slot_round_trips_and_is_rejected_when_torn_or_rotten() -> None:
    """All 512 bytes are covered."""
    mark = Mark(sequence=9, base=Base(index=3, term=2, chain=5), index=2**40, chain=77)
    slot = encode_mark(mark)
    assert (decode_mark(slot), len(slot)) == (mark, SLOT_BYTES)

    for at in range(len(slot)):
        rotten = bytearray(slot)
        rotten[at] ^= 1
        for damaged in (bytes(rotten), slot[:at]):
            with pytest.raises(ValueError, match=r"CRC|bytes"):
                decode_mark(damaged)


def test_slot_that_was_never_written_is_not_a_mark() -> None:
    """Zeros of the preallocated file."""
    with pytest.raises(ValueError, match="CRC"):
        decode_mark(bytes(SLOT_BYTES))


def test_check_entry_names_both_checksums() -> None:
    """A body that changed on its way is refused before it reaches the log."""
    good = entry(4, term=2, data=b"body")
    bad = Entry(term=2, index=4, kind=good.kind, timestamp_ms=0, crc32c=good.crc32c, data=b"bodi")

    check_entry(good)
    with pytest.raises(InvalidArgument, match=f"{good.crc32c:#010x}"):
        check_entry(bad)


def test_record_of_another_index_does_not_continue_the_log() -> None:
    """Both indexes are named."""
    with pytest.raises(ValueError, match="index is 4, expected 5"):
        decode_record_header(joined([entry(4)]), 0, chain=0, index=5)


def test_files_of_one_kind_are_not_taken_for_another() -> None:
    """Each has a magic word of its own, which a CRC that fits does not replace."""
    page = bytearray(encode_segment_header(HEADER))
    page[:8] = b"DLGRIDX\0"
    page[220:224] = crc32c(page[:220]).to_bytes(4, "little")

    with pytest.raises(ValueError, match="not a segment: magic is b'DLGRIDX"):
        decode_segment_header(bytes(page))


def test_index_columns_are_little_endian_on_any_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine whose integers lie the other way swaps them when it writes and when it reads."""
    index = SegmentIndex(
        first_index=1,
        previous_chain=3,
        end=4200,
        positions=array("I", [512, 520]),
        chains=array("I", [1, 2]),
        runs=((1, 1),),
        memberships=(2,),
    )
    written = encode_index(index)

    monkeypatch.setattr("sys.byteorder", "big")
    swapped = encode_index(index)

    assert decode_index(swapped) == index
    assert (swapped[56:60], written[56:60]) == (written[59:55:-1], (512).to_bytes(4, "little"))
