"""What comes through the peers' ports: handshakes, connect tokens, frames, entries."""

from __future__ import annotations

import json
from collections.abc import Hashable
from dataclasses import fields
from random import Random
from typing import Any, ClassVar

from crc32c import crc32c

from dledger.common.reports import Mark, Report, Room
from dledger.errors import InvalidArgument, NewerCommand, Refused
from dledger.peers import peer_codec
from dledger.peers.framing import BadFraming, FrameReader, prefix
from dledger.peers.handshake import ClientAddress, Handshake, PeerAddress, check
from dledger.peers.peer_codec import BadFrame, UnknownMessage
from dledger.peers.replication_port import ConnectToken
from dledger.raft import messages as raft
from dledger.replica.reports import ReportRequest, ReportResponse
from dledger.rpc.pb import dledger_pb2 as pb
from dledger.rpc.rocketmq_stubs import definition
from dledger.store.format import encode_records
from dledger.store.hard_state import encode_hard_state
from dledger.types import Entry, EntryKind, HardState, Member, Membership, NodeId, SnapshotInfo
from tests.fuzz.mutation import NUMBERS, TEXTS, json_bytes, mutated, nested, spoil
from tests.fuzz.target import Broken, Target

A, B = NodeId("a"), NodeId("b")
_MEMBERSHIP = Membership.of([Member(id=A, name="n-0", address="127.0.0.1:1")], "g").encode()


def _entry(index: int, data: bytes, kind: EntryKind = EntryKind.DATA) -> Entry:
    return Entry(term=2, index=index, kind=kind, timestamp_ms=1, crc32c=crc32c(data), data=data)


_ENTRIES = (
    _entry(5, b""),
    _entry(6, b"some data"),
    _entry(7, _MEMBERSHIP, EntryKind.MEMBERSHIP),
)


_REPORT = Report(
    incarnation="a",
    unix_ms=1_700_000_000_000,
    room=Room(total_bytes=9, free_bytes=4, own_bytes=3, budget_bytes=8),
    marks={A: Mark(last_term=1, last_index=2, term=3)},
)
_KINDS = (
    *peer_codec._FIELDS,
    raft.AppendRequest,
    raft.InstallSnapshotRequest,
    ReportRequest,
    ReportResponse,
)


def _a(kind: Any) -> Any:
    """Return a message of a kind, with small numbers in it."""
    info = SnapshotInfo(last_index=9, last_term=2, last_chain=3, size_bytes=4, crc32c=7)
    odd = {"sender": A, "recipient": B, "term": 3, "entries": _ENTRIES, "info": info,
           "data": b"snap", "previous_index": 4, "report": _REPORT}  # fmt: skip
    return kind(**{each.name: odd.get(each.name, 1) for each in fields(kind)})


class Frames(Target):
    """A Raft message of an accepted peer: if decoded, it is written, answered, encoded alike."""

    name = "frames"
    refuses = (BadFrame, UnknownMessage, NewerCommand)

    def __init__(self) -> None:
        self._seeds = [peer_codec.encode(_a(kind)) for kind in _KINDS]

    def draw(self, rng: Random) -> bytes:
        if rng.random() < 0.05:
            return rng.randbytes(rng.randrange(90))
        return mutated(rng, rng.choice(self._seeds), 3)

    def feed(self, data: bytes) -> Hashable:
        message = peer_codec.decode(memoryview(data), sender=A, recipient=B)
        again = peer_codec.decode(peer_codec.encode(message), sender=A, recipient=B)
        if again != message:
            raise Broken(f"encoded again it is another message: {again!r:.80}")
        for term in _terms(message):
            _check_term(term)
        return type(message).__name__


def _terms(message: raft.Message) -> list[int]:
    names = ("term", "previous_term", "last_term", "conflict_term", "entry_term")
    terms = [getattr(message, name) for name in names if hasattr(message, name)]
    return [*terms, *(each.term for each in getattr(message, "entries", ()))]


def _check_term(term: int) -> None:
    """A node stores a term that it hears, campaigns with the next, and says it in its status."""
    try:
        encode_hard_state(HardState(term=term + 1, vote=A))
        pb.StatusResponse(term=term + 1)
    except Exception as error:
        raise Broken(f"the term after {term} cannot be stored or told: {error!s:.60}") from error


class PeerEntries(Target):
    """Entries that a damaged log asked its peers for."""

    name = "peer-entries"
    refuses = (BadFrame, NewerCommand)

    def draw(self, rng: Random) -> bytes:
        entries = [
            Entry(
                term=rng.choice(NUMBERS) % 2**64,
                index=rng.choice(NUMBERS) % 2**64,
                kind=rng.choice(list(EntryKind)),
                timestamp_ms=rng.choice(NUMBERS[:20]),
                crc32c=crc32c(data),
                data=data,
            )
            for data in (rng.choice((b"", b"x", _MEMBERSHIP)) for _ in range(rng.randrange(4)))
        ]
        made = peer_codec.encode_entries(entries)
        return mutated(rng, made, 2) if rng.random() < 0.7 else made

    def feed(self, data: bytes) -> Hashable:
        entries = peer_codec.decode_entries(data)
        if peer_codec.encode_entries(entries) != data:
            raise Broken("encoded again it is something else")
        encode_records(entries, chain=0, position=0)  # what a repair writes
        return len(entries)


class Framing(Target):
    """Frames of a TCP connection, however they are cut: each comes out once, whole and in order."""

    name = "framing"
    refuses = (BadFraming,)
    _MOST: ClassVar[int] = 1 << 20

    def draw(self, rng: Random) -> bytes:
        sizes = [rng.choice((0, 1, 5, 100, 70_000)) for _ in range(rng.randrange(5))]
        frames = [bytes([size % 251]) * size for size in sizes]
        stream = b"".join(prefix(one) + one for one in frames)
        return bytes([rng.randrange(256)]) + (
            mutated(rng, stream, 1) if rng.random() < 0.4 else stream
        )

    def feed(self, data: bytes) -> Hashable:
        rng, stream = Random(data[:1]), data[1:]
        got: list[bytes] = []
        reader = FrameReader(lambda view: got.append(bytes(view)), max_frame_bytes=self._MOST)
        at = 0
        while at < len(stream):
            room = reader.space()
            if not len(room):
                raise Broken("there is no room for what comes next")
            size = min(len(room), len(stream) - at, rng.choice((1, 3, 4, 5, 1_000, 200_000)))
            room[:size] = stream[at : at + size]
            at += size
            reader.filled(size)
        whole = b"".join(prefix(one) + one for one in got)
        if not stream.startswith(whole):
            raise Broken("the frames are not those of the stream")
        return len(got)


class Handshakes(Target):
    """The handshake of a peer stream: fields of their types, that routes and logs can carry."""

    name = "handshakes"
    refuses = (InvalidArgument,)
    _SEED: ClassVar = Handshake(
        group_id="6f9619ff-8b86-4d01-b42d-00cf4fc964ff",
        sender_id=A,
        sender_name="orders-0",
        recipient_id=B,
        endpoint=PeerAddress(host="10.0.0.1", port=20911),
    )

    def draw(self, rng: Random) -> bytes:
        if rng.random() < 0.02:
            return nested(rng).encode()
        seed = json_bytes(json.loads(self._SEED.encode()))
        way = rng.randrange(3)
        return seed if way == 0 else mutated(rng, seed) if way == 1 else self._spoilt(rng, seed)

    def _spoilt(self, rng: Random, seed: bytes) -> bytes:
        return json_bytes(spoil(rng, json.loads(seed), 2))

    def feed(self, data: bytes) -> Hashable:
        hello = Handshake.decode(data.decode("latin-1"))
        if Handshake.decode(hello.encode()) != hello:
            raise Broken("said again it is another handshake")
        texts = (hello.group_id, hello.sender_id, hello.sender_name, hello.recipient_id)
        for text in (*texts, hello.endpoint.host):
            _check_said(text)
        if not 0 < hello.endpoint.port < 1 << 16:
            raise Broken(f"its port is {hello.endpoint.port}")
        try:
            check(
                hello, node_id=B, group_id=self._SEED.group_id, told_group="",
                membership=Membership(),
            )  # fmt: skip
        except Refused as error:
            return type(error).__name__
        return "welcome"


def _check_said(text: object) -> None:
    if not isinstance(text, str):
        raise Broken(f"a text of it is of type {type(text).__name__}")
    if len(text) > 1_024:
        raise Broken("a text of it has over 1,024 characters")


class ClientAddresses(Target):
    """Where a peer says that clients reach it: what routes are made of."""

    name = "client-addresses"
    refuses = (InvalidArgument,)

    def draw(self, rng: Random) -> bytes:
        seed = {"host": "10.0.0.1", "port": 8081, "tls_port": rng.choice((0, 8082))}
        return json_bytes(spoil(rng, seed, 2) if rng.random() < 0.9 else seed)

    def feed(self, data: bytes) -> Hashable:
        try:
            said = json.loads(data)
        except (ValueError, RecursionError):
            return "no JSON"
        if not isinstance(said, dict):
            return "no object"
        found = ClientAddress.checked(
            host=said.get("host"), port=said.get("port"), tls_port=said.get("tls_port")
        )
        _check_said(found.host)
        for port in (found.port, found.tls_port):
            raw = definition.Address(host=found.host, port=port).SerializeToString()
            if definition.Address.FromString(raw).port != port:
                raise Broken("a route says another port")
        return found.tls_port == 0


class ConnectTokens(Target):
    """The connect token for the replication port that an accepted peer answers."""

    name = "connect-tokens"
    refuses = (InvalidArgument,)

    def draw(self, rng: Random) -> bytes:
        port, token, level = rng.choice((1, 20912, 65_535)), rng.randbytes(16), 1
        made = f"{port}:{token.hex()}:{level}"
        parts = made.split(":")
        way = rng.randrange(3)
        if way == 0:
            return mutated(rng, made.encode())
        if way == 1:
            parts[rng.randrange(3)] = rng.choice((*TEXTS, *map(str, NUMBERS), "9" * 5_000))
        return ":".join(parts).encode("utf-8", "replace")

    def feed(self, data: bytes) -> Hashable:
        connect_token = ConnectToken.decode(data.decode("utf-8", "replace"))
        if ConnectToken.decode(connect_token.encode()) != connect_token:
            raise Broken("said again it is another connect token")
        return "connect token"
