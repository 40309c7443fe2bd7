"""TLS as bytes in and bytes out, against Python's client: any pieces, any order of ends, floods."""

from __future__ import annotations

import random
import ssl
import struct
from pathlib import Path

import pytest

from dledger.door.tls_transport import (
    BARREN_BYTES,
    GREETING_BYTES,
    SLICE_BYTES,
    BrokenTls,
    TlsBytes,
)
from tests.door.tls_client import (
    ALERT,
    DATA,
    HANDSHAKE,
    KEY_UPDATE,
    Sealer,
    TlsClient,
    certificate,
    client_context,
)

SIZES = (1, 50, 1_000, SLICE_BYTES, SLICE_BYTES + 1, 100_000)
PIECES = (1, 5, 30, 1_000, SLICE_BYTES)
ONE_RECORD = 5 + SLICE_BYTES + 256
"""The most that waits for the rest of a record (RFC 8446, 5.2)."""


class Wire:
    """A client and a server of TLS, and the bytes between them that have not arrived yet."""

    def __init__(self, context: ssl.SSLContext) -> None:
        self.client, self.server = TlsClient(context), TlsBytes(certificate().context)
        self.up = self.down = self.got = b""
        self.client.receive(b"")
        self.up += self.client.drain()

    def carry_up(self, size: int) -> None:
        """Have so many bytes arrive at the server."""
        data, self.up = self.up[:size], self.up[size:]
        if data and not self.server.is_over:
            self.got += self.server.receive(data)
            self.down += self.server.drain()

    def carry_down(self, size: int) -> None:
        """Have so many bytes arrive at the client."""
        data, self.down = self.down[:size], self.down[size:]
        self.client.receive(data)
        self.up += self.client.drain()

    def carry_all(self) -> None:
        """Have all bytes arrive."""
        while (self.up and not self.server.is_over) or self.down:
            self.carry_up(SLICE_BYTES)
            self.carry_down(SLICE_BYTES)


def opened(keys: Path | None = None) -> Wire:
    """Return both with their handshake done."""
    context = client_context()
    if keys is not None:
        context.keylog_filename = str(keys)
    wire = Wire(context)
    wire.carry_all()
    assert wire.server.is_open
    return wire


def receive_all(server: TlsBytes, data: bytes) -> bytes:
    """Give a server bytes as its socket would; return what they carried."""
    starts = range(0, len(data), SLICE_BYTES)
    return b"".join([server.receive(data[at : at + SLICE_BYTES]) for at in starts])


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
@pytest.mark.parametrize("seed", range(12))
def test_what_one_side_sends_is_what_the_other_gets(seed: int, version: ssl.TLSVersion) -> None:
    """In whichever pieces it travels, whichever side ends first, and nothing of it is kept."""
    rng, wire = random.Random(seed), Wire(client_context(version))
    asked, answered = b"", b""
    for _ in range(300):
        match rng.randrange(8):
            case 0 if wire.client.is_open:
                data = rng.randbytes(rng.choice(SIZES))
                asked += data
                wire.client.send(data)
                wire.up += wire.client.drain()
            case 1 if wire.server.is_open:
                data = rng.randbytes(rng.choice(SIZES))
                answered += data
                wire.down += b"".join(wire.server.send(data))
            case 2 | 3 | 4:
                wire.carry_up(rng.choice(PIECES))
            case _:
                wire.carry_down(rng.choice(PIECES))
    wire.carry_all()
    client_ends = rng.random() < 0.5
    if client_ends:
        wire.client.end()
        wire.up += wire.client.drain()
        wire.carry_all()
    wire.down += wire.server.end()
    wire.carry_all()

    assert wire.got == asked
    assert wire.client.got == answered
    assert wire.server.is_over == client_ends
    assert wire.client.is_over
    assert not wire.server.has_words


@pytest.mark.parametrize("seed", range(40))
def test_damage_ends_it_and_what_came_before_is_right(seed: int) -> None:
    """A byte that is changed, lost or added, from the first one on: an error, or nothing more."""
    rng, wire = random.Random(seed), Wire(client_context())
    asked, good = b"", rng.randrange(4)
    try:
        for number in range(8):
            if wire.client.is_open:
                data = rng.randbytes(rng.choice(SIZES))
                asked += data
                wire.client.send(data)
                wire.up += wire.client.drain()
            if number == good:
                at, kind = rng.randrange(len(wire.up) + 1), rng.randrange(3)
                wire.up = wire.up[:at] + rng.randbytes(kind) + wire.up[at + 1 :]
            while wire.up:
                wire.carry_up(rng.choice(PIECES[2:]))
            wire.carry_down(1 << 20)
    except (ssl.SSLError, BrokenTls):
        pass

    assert asked.startswith(wire.got)
    assert wire.got != asked or not asked


def test_a_handshake_that_has_no_end_is_given_up() -> None:
    """A ClientHello says how long it is; OpenSSL would wait for 128 KiB of it."""
    server = TlsBytes(certificate().context)
    hello = bytes.fromhex("010200000303") + bytes(GREETING_BYTES)
    records = [hello[at : at + (1 << 14)] for at in range(0, len(hello), 1 << 14)]

    with pytest.raises(BrokenTls, match="its handshake has no end"):
        receive_all(
            server,
            b"".join(struct.pack(">BHH", HANDSHAKE, 0x0301, len(each)) + each for each in records),
        )


@pytest.mark.parametrize("first", [b"GET / HTTP/1.1\r\nHost: door\r\n\r\n", b"PRI * HTTP/2.0\r\n"])
def test_plain_text_is_refused_at_once(first: bytes) -> None:
    """What does not speak TLS is told so by the end of its connection."""
    with pytest.raises(ssl.SSLError):
        TlsBytes(certificate().context).receive(first)


def test_new_keys_are_taken_as_often_as_data_pay_for_them(tmp_path: Path) -> None:
    """Each costs a client 27 bytes and this node 10 us, and OpenSSL does not count them."""
    wire = opened(tmp_path / "keys")
    sealer, each = Sealer(tmp_path / "keys"), bytes(2_000)
    for _ in range(BARREN_BYTES // 27 + 100):
        assert wire.server.receive(sealer.key_update() + sealer.record(each)) == each

    flood = b"".join(sealer.key_update() for _ in range(BARREN_BYTES // 27 + 2))
    with pytest.raises(BrokenTls, match="it sends what carries nothing"):
        receive_all(wire.server, flood)


def test_padding_counts_as_what_carries_nothing(tmp_path: Path) -> None:
    """It is decrypted for nothing."""
    wire = opened(tmp_path / "keys")
    sealer = Sealer(tmp_path / "keys")

    records = [sealer.record(b"x", padding=1_000) for _ in range(BARREN_BYTES // 1_000 + 1)]
    with pytest.raises(BrokenTls, match="it sends what carries nothing"):
        receive_all(wire.server, b"".join(records))


@pytest.mark.parametrize("content", [b"", bytes((1, 90))])
def test_records_and_alerts_without_content_end_it(tmp_path: Path, content: bytes) -> None:
    """OpenSSL counts these."""
    wire = opened(tmp_path / "keys")
    sealer = Sealer(tmp_path / "keys")

    kind = ALERT if content else DATA
    with pytest.raises(ssl.SSLError):
        receive_all(wire.server, b"".join(sealer.record(content, kind) for _ in range(50)))


def test_small_records_are_not_held_against_a_client(tmp_path: Path) -> None:
    """A byte a record is dear for both, and some library may do it."""
    wire = opened(tmp_path / "keys")
    sealer = Sealer(tmp_path / "keys")

    for _ in range(2 * BARREN_BYTES // 23):
        assert wire.server.receive(sealer.record(b"x")) == b"x"


def test_nothing_can_be_sent_within_a_message_of_the_client(tmp_path: Path) -> None:
    """Half a message of TLS, as no library sends it: OpenSSL wants the rest before all else."""
    wire = opened(tmp_path / "keys")
    wire.server.receive(Sealer(tmp_path / "keys").record(KEY_UPDATE[:4], HANDSHAKE))

    with pytest.raises(ssl.SSLError):
        wire.server.send(b"answer")


def test_an_end_behind_data_does_not_lose_them() -> None:
    """And what comes behind that end is nobody's."""
    wire = opened()
    wire.client.send(b"last")
    wire.client.end()
    data = wire.client.drain()

    assert wire.server.receive(data + b"garbage") == b"last"
    assert wire.server.is_over
    wire.down += b"".join(wire.server.send(b"answer")) + wire.server.end()
    wire.client.receive(wire.down)
    assert wire.client.got == b"answer"


def test_a_record_on_its_way_is_not_one_that_carries_nothing() -> None:
    """In pieces of a byte each, of the largest size."""
    wire = opened()
    wire.client.send(bytes(SLICE_BYTES))
    record = wire.client.drain()

    assert ONE_RECORD < BARREN_BYTES
    for at in range(len(record)):
        carried = wire.server.receive(record[at : at + 1])
    assert carried == bytes(SLICE_BYTES)
