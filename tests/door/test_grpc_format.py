"""gRPC on HTTP/2, as functions: messages are found however they are cut, limits are kept."""

from __future__ import annotations

from urllib.parse import unquote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dledger.door.contract import Code, Failed, Headers
from dledger.door.grpc_format import (
    Deframer,
    framed,
    http_refusal,
    percent_encoded,
    timeout_s,
)

MESSAGES = st.lists(st.binary(max_size=40), max_size=8)
CUTS = st.lists(st.integers(min_value=1, max_value=30), min_size=1)


@given(messages=MESSAGES, cuts=CUTS)
def test_messages_are_found_however_they_are_cut(messages: list[bytes], cuts: list[int]) -> None:
    """And what is missing of one is always known."""
    rest, deframer, found = b"".join(map(framed, messages)), Deframer(40), []
    boundaries = {0}
    for message in messages:
        boundaries.add(max(boundaries) + len(framed(message)))
    position = number = 0
    while rest:
        size = cuts[number % len(cuts)]
        number += 1
        found += deframer.feed(rest[:size])
        position, rest = min(position + size, position + len(rest)), rest[size:]

        assert (deframer.missing == 0) == (position in boundaries)
        assert deframer.kept == position - max(each for each in boundaries if each <= position)

    assert found == messages


def test_a_message_that_drips_is_kept_in_few_pieces() -> None:
    """A byte by itself takes more than forty."""
    message, deframer = bytes(range(250)) * 400, Deframer(1 << 20)
    found = [each for byte in framed(message) for each in deframer.feed(bytes((byte,)))]

    assert found == [message]
    for byte in framed(message)[:-1]:
        deframer.feed(bytes((byte,)))
    assert len(deframer._parts) < len(message) / 2000


@given(st.binary(max_size=64), CUTS)
def test_what_is_kept_is_never_more_than_one_message(data: bytes, cuts: list[int]) -> None:
    """Of any bytes at all."""
    deframer, number = Deframer(10), 0
    while data:
        size = cuts[number % len(cuts)]
        number += 1
        try:
            deframer.feed(data[:size])
        except Failed:
            return
        data = data[size:]

        assert deframer.kept < 15
        assert 0 <= deframer.missing <= 15


@given(st.text())
def test_any_text_is_decoded_as_it_was(text: str) -> None:
    """Apart from outer spaces, which a field of HTTP/2 does not have."""
    encoded = percent_encoded(text)

    assert unquote(encoded.decode("ascii")) == text.strip(" ")
    assert all(0x20 <= byte < 0x7F for byte in encoded)


@pytest.mark.parametrize("text", ["%" * 9000, "é" * 9000, "a" * 9000, "\ud800" * 9000])
def test_a_long_message_is_cut_between_its_characters(text: str) -> None:
    """The client's limit of metadata is 8 KiB."""
    encoded = percent_encoded(text)

    assert 4000 < len(encoded) <= 4096
    assert "%" not in unquote(encoded.decode()).strip("%")


@pytest.mark.parametrize(
    ("value", "seconds"),
    [(b"1H", 3600.0), (b"2M", 120.0), (b"3S", 3.0), (b"4m", 0.004), (b"5u", 5e-6), (b"6n", 6e-9)],
)
def test_each_unit_of_a_timeout_is_known(value: bytes, seconds: float) -> None:
    """Six, of which two differ in case alone."""
    assert timeout_s(value) == pytest.approx(seconds)


@pytest.mark.parametrize(
    ("kind", "is_grpc"),
    [
        (b"application/grpc", True),
        (b"application/grpc+proto", True),
        (b"application/grpc;charset=utf-8", True),
        (b"application/grpc-web", False),
        (b"application/grpcx", False),
        (b"", False),
    ],
)
def test_only_grpcs_own_content_types_are_taken(kind: bytes, is_grpc: bool) -> None:
    """gRPC-Web frames its messages in another way."""
    refusal = http_refusal({b":method": b"POST", b"content-type": kind})

    assert (refusal is None) == is_grpc
    assert refusal is None or refusal[0] == (b":status", b"415")


@pytest.mark.parametrize(
    ("value", "found"),
    [(b"AP8=", b"\0\xff"), (b"AP8", b"\0\xff"), (b"", b""), (b"A", None), (b"!!", None)],
)
def test_binary_metadata_needs_no_padding(value: bytes, found: bytes | None) -> None:
    """And what is no base64 is no value."""
    headers = Headers((), {b"x-bin": value}, peer="", connection=1, deadline_s=None)

    assert headers.binary(b"x-bin") == found
    assert headers.binary(b"y-bin") is None


def test_a_flag_is_judged_before_the_size() -> None:
    """A compressed message's size says nothing about it."""
    with pytest.raises(Failed) as caught:
        Deframer(10).feed(b"\1\xff\xff\xff\xff")

    assert caught.value.code is Code.UNIMPLEMENTED
