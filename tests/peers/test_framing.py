"""Frames on a byte stream, however the bytes arrive."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dledger.peers import framing
from dledger.peers.framing import BadFraming, FrameReader, prefix

FRAMES = st.lists(st.binary(max_size=300), max_size=20)
PIECES = st.lists(st.integers(1, 400), min_size=1, max_size=20)


class Taken:
    """A reader and the frames that it handed on."""

    def __init__(self, max_frame_bytes: int = 1 << 20) -> None:
        self.frames: list[bytes] = []
        self.reader = FrameReader(self._take, max_frame_bytes=max_frame_bytes)

    def _take(self, frame: memoryview) -> None:
        self.frames.append(bytes(frame))

    def arrives(self, data: bytes, most: int) -> bytes:
        """Let at most so many bytes arrive, as the socket would; return the rest."""
        space = self.reader.space()
        count = min(len(space), len(data), most)
        assert count > 0
        space[:count] = data[:count]
        self.reader.filled(count)
        return data[count:]


def stream(*frames: bytes) -> bytes:
    return b"".join(prefix(frame) + frame for frame in frames)


@given(FRAMES, PIECES, st.integers(4, 64))
def test_frames_come_whole_and_in_order_however_they_arrive(
    frames: list[bytes], pieces: list[int], buffer_bytes: int
) -> None:
    """Cut anywhere, many in one read, larger than the buffer, and empty."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(framing, "_BUFFER_BYTES", buffer_bytes)
        taken, rest, turn = Taken(), stream(*frames), 0
        while rest:
            rest = taken.arrives(rest, pieces[turn % len(pieces)])
            turn += 1

    assert taken.frames == frames


def test_a_buffer_made_for_a_large_frame_goes_with_it() -> None:
    """Memory is bounded by what is under way, and grows as that comes."""
    taken = Taken()
    large, small = bytes(900_000), b"small"
    rest = stream(large, small)
    while rest:
        rest = taken.arrives(rest, 100_000)

    assert taken.frames == [large, small]
    assert len(taken.reader.space()) == 512 << 10


@pytest.mark.found
def test_a_length_alone_takes_no_memory() -> None:
    """What is said to come is not there yet (found: S14)."""
    taken = Taken(max_frame_bytes=64 << 20)

    taken.arrives((64 << 20).to_bytes(4, "little"), 4)

    assert len(taken.reader.space()) < 16 << 10


def test_a_frame_that_is_too_long_is_refused_by_its_length() -> None:
    """Before anything of it is kept; one at the bound is taken."""
    taken = Taken(max_frame_bytes=10)

    taken.arrives(stream(bytes(10)), 100)
    with pytest.raises(BadFraming, match="a frame of 11 bytes"):
        taken.arrives(prefix(bytes(11)), 100)

    assert taken.frames == [bytes(10)]
