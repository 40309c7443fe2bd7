"""At the peers' ports: fields of a handshake, terms, entries, frames, silent connections."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import grpc
from crc32c import crc32c

from dledger.peers.framing import prefix
from dledger.peers.handshake import METADATA_KEY
from dledger.peers.peer_codec import encode
from dledger.peers.peer_link import SERVICE
from dledger.peers.replication_port import CONNECT_TOKEN_KEY, ConnectToken
from dledger.raft.messages import (
    AppendRequest,
    HeartbeatRequest,
    Message,
    PreVoteRequest,
    VoteRequest,
)
from dledger.rpc.rocketmq_stubs import definition, service
from dledger.types import Entry, EntryKind, NodeId
from e2e.harness.checks import Check
from e2e.hostile.judging import held
from e2e.hostile.neighbours import raw_produce
from e2e.hostile.scene import Scene, call, closed, connect, silence

_TRAP: Final = "127.0.0.66"


@contextmanager
def handshaken(scene: Scene, node: int, **said: Any) -> Iterator[ConnectToken | str]:
    """Open a handshake with a node; yield the connect token, or why it was refused."""
    status = scene.status(node)
    hello = {
        "group_id": status.group_id,
        "sender_id": "made-up",
        "sender_name": "unknown",
        "recipient_id": status.node_id,
        "endpoint": {"host": _TRAP, "port": 1},
    } | said
    ended = threading.Event()
    with scene.channel(scene.admins[node]) as channel:
        call = channel.stream_stream(f"/{SERVICE}/Control")(
            silence(ended), metadata=((METADATA_KEY, json.dumps(hello)),), timeout=60
        )
        try:
            metadata = {key: value for key, value in call.initial_metadata()}  # noqa: C416
            if CONNECT_TOKEN_KEY in metadata:
                yield ConnectToken.decode(str(metadata[CONNECT_TOKEN_KEY]))
            else:
                yield _reason(call)
        except grpc.RpcError as error:
            yield str(error.details())
        finally:
            ended.set()
            call.cancel()


def _reason(call: Any) -> str:
    try:
        for _ in call:
            pass
    except grpc.RpcError as error:
        return str(error.details())
    return "ended without a connect token"


def say(token: ConnectToken | str, *messages: Message) -> bool:
    """Send frames with a connect token; return whether there was one to send with."""
    if isinstance(token, str):
        return False
    with contextlib.suppress(OSError), connect(("127.0.0.1", token.port)) as connection:
        frames = b"".join(prefix(frame) + frame for frame in map(encode, messages))
        connection.sendall(token.token + frames)
        time.sleep(0.3)
    return True


def terms(scene: Scene) -> list[int]:
    """Return the term of each node."""
    return [scene.status(node).term for node in range(len(scene.admins))]


def term_bombs(scene: Scene) -> list[Check]:
    """A05: the largest terms, as an unknown node and in a member's name, to each node."""
    before = max(terms(scene))
    leader_id = scene.status(scene.leader).node_id
    sent = 0
    for node in range(len(scene.admins)):
        recipient = NodeId(scene.status(node).node_id)
        for sender in ("made-up", leader_id):
            with handshaken(scene, node, sender_id=sender) as token:
                for term in (2**64 - 1, 2**63 - 1, 2**62, 2**62 - 1):
                    common: dict[str, Any] = {
                        "sender": NodeId(sender),
                        "recipient": recipient,
                        "term": term,
                    }
                    sent += say(
                        token,
                        HeartbeatRequest(**common, commit_index=0, commit_chain=0, round=1),
                    )
                    sent += say(
                        token,
                        VoteRequest(
                            **common, last_index=0, last_term=0, last_chain=0, transfer=True
                        ),
                    )
    after = max(terms(scene))
    return [
        held("a05: terms after the bombs", f"{before} -> {after}", "no jump", after < before + 100),
        held("a05: frames taken in", sent, "as may be", True),
    ]


def route_poison(scene: Scene) -> list[Check]:
    """A06: a member's name with another address, fields of other types, lines for the log."""
    asked = scene.follower()
    others = [node for node in range(len(scene.admins)) if node != asked]
    wrong: list[str] = []
    for node in others:
        with handshaken(scene, asked, sender_id=scene.status(node).node_id):
            time.sleep(0.5)
            wrong += [each for each in _routes(scene, asked) if _TRAP in each]
    odd: list[dict[str, Any]] = [
        {"endpoint": {"host": 12_345, "port": "x"}},
        {"sender_id": ["x"]},
        {"sender_id": "x" * 4_000},
        {"sender_name": "evil\n2026-01-01 00:00:00,000 CRITICAL forged.logger: disk failed"},
    ]
    for each in odd:
        with contextlib.suppress(grpc.RpcError), handshaken(scene, asked, **each):
            pass
    with scene.channel(scene.admins[asked]) as channel:
        call = channel.stream_stream(f"/{SERVICE}/Control")(
            iter(()), metadata=((METADATA_KEY, "[" * 4_000),), timeout=5
        )
        _reason(call)
    routes = _routes(scene, asked)
    return [
        held("a06: routes to the attacker", wrong, "none", not wrong),
        held("a06: routes afterwards", len(routes), "some", bool(routes)),
    ]


def _routes(scene: Scene, node: int) -> list[str]:
    request = service.QueryRouteRequest(topic=definition.Resource(name="victim"))
    with scene.channel(scene.endpoints[node]) as channel:
        try:
            raw = call(channel, "QueryRoute", request)
        except grpc.RpcError:
            return []
    found = service.QueryRouteResponse.FromString(raw).message_queues
    return sorted(
        {f"{a.host}:{a.port}" for queue in found for a in queue.broker.endpoints.addresses}
    )


def forged_entries(scene: Scene) -> list[Check]:
    """A07: an entry in the leader's name, votes of a made-up node, Admin at the clients' port."""
    follower, before = scene.follower(), max(terms(scene))
    leader_id = scene.status(scene.leader).node_id
    with scene.channel(scene.endpoints[scene.leader]) as channel:
        scene.create_topic(channel, "ledger", 1)
        for number in range(4):
            scene.send(channel, "ledger", f"t{number}", b"true %d" % number)
        status = scene.status(follower)
        ids: dict[str, Any] = {"sender": NodeId(leader_id), "recipient": NodeId(status.node_id)}
        data = raw_produce(b"ledger", b"forged")
        entry = Entry(
            term=status.term, index=status.last_index + 1, kind=EntryKind.DATA,
            timestamp_ms=int(time.time() * 1_000), crc32c=crc32c(data), data=data,
        )  # fmt: skip
        with handshaken(scene, follower, sender_id=leader_id) as token:
            say(
                token,
                AppendRequest(
                    **ids, term=status.term, previous_index=status.last_index,
                    previous_term=status.term, previous_chain=0, last_chain=0,
                    commit_index=status.last_index + 1, entries=(entry,),
                ),
            )  # fmt: skip
        _votes(scene, follower)
        answered = _admin_at(channel)
        time.sleep(1)
        held_by = []
        for node in range(len(scene.endpoints)):
            with scene.channel(scene.endpoints[node]) as one:
                held_by.append(scene.bodies(one, "ledger", 1))
    forged = sum(body == b"poison" for bodies in held_by for body in bodies)
    return [
        held("a07: forged messages", forged, "none", forged == 0),
        held("a07: nodes differ", len({tuple(each) for each in held_by}), "alike",
             len({tuple(each) for each in held_by}) == 1),
        held("a07: terms", f"{before} -> {max(terms(scene))}", "no storm",
             max(terms(scene)) < before + 5),
        held("a07: Admin at the clients' port", answered, "none", not answered),
    ]  # fmt: skip


def _votes(scene: Scene, follower: int) -> None:
    status = scene.status(follower)
    ids: dict[str, Any] = {"sender": NodeId("made-up"), "recipient": NodeId(status.node_id)}
    last: dict[str, Any] = {"last_index": 1 << 40, "last_term": 1 << 40, "last_chain": 0}
    with handshaken(scene, follower) as token:
        for number in range(10):
            say(
                token,
                PreVoteRequest(**ids, term=status.term + 1 + number, **last),
                VoteRequest(**ids, term=status.term + 1 + number, **last, transfer=True),
            )


def _admin_at(channel: grpc.Channel) -> list[str]:
    answered = []
    for name in ("Admin/Status", "Admin/RemoveMember", "Peer/Control", "Records/Read"):
        try:
            channel.unary_unary(f"/dledger.v1.{name}")(b"", timeout=3)
            answered.append(name)
        except grpc.RpcError as error:
            if error.code() is not grpc.StatusCode.UNIMPLEMENTED:
                answered.append(f"{name}: {error.code().name}")
    return answered


def replication_frames(scene: Scene) -> list[Check]:
    """A08: hostile frames on the entries' port, with a connect token where one is given."""
    rng = random.Random(7)
    member = scene.status(scene.follower()).node_id
    outcome = {"sent": 0, "refused": 0}
    with handshaken(scene, scene.leader, sender_id=member) as token:
        if isinstance(token, str):
            return [held("a08: the handshake", token, "refused or a token", bool(token))]
        bodies = (
            b"\xff\xff\xff\xff" + rng.randbytes(64),
            *((n.to_bytes(4, "little") + rng.randbytes(n)) for n in (0, 5, 60, 200)),
            (60).to_bytes(4, "little") + b"\x05" + rng.randbytes(59),
            (64 << 20).to_bytes(4, "little") + b"\x05",
            (9).to_bytes(4, "little") + b"\xee" + bytes(8),
        )
        for number in range(400):
            try:
                with connect(("127.0.0.1", token.port)) as connection:
                    secret = token.token if number % 4 else os.urandom(16)
                    connection.sendall(secret + bodies[number % len(bodies)])
                    outcome["sent"] += 1
            except OSError:
                outcome["refused"] += 1
    return [held("a08: connections", outcome, "some", outcome["sent"] > 0)]


def frame_buffers(scene: Scene) -> list[Check]:
    """A08b: accepted connections that a bad frame ends at once, one after the other."""
    member = scene.status(scene.follower()).node_id
    made = 0
    with handshaken(scene, scene.leader, sender_id=member) as token:
        if isinstance(token, str):
            return [held("a08b: the handshake", token, "refused or a token", bool(token))]
        for _ in range(600):
            with contextlib.suppress(OSError), connect(("127.0.0.1", token.port)) as connection:
                connection.sendall(token.token + b"\xff\xff\xff\xff")
                made += 1
    return [held("a08b: connections", made, "some", made > 0)]


def silent_connections(scene: Scene) -> list[Check]:
    """A09: 80 silent connections at the leader's entries' port while followers start again."""
    with handshaken(scene, scene.leader, sender_id=scene.status(scene.follower()).node_id) as token:
        if isinstance(token, str):
            return [held("a09: the port", token, "known", False)]
    port, ended = token.port, threading.Event()

    def hold() -> None:
        while not ended.is_set():
            with contextlib.suppress(OSError), connect(("127.0.0.1", port), 1.0) as connection:
                connection.settimeout(6)
                connection.recv(1)
            ended.wait(0.05)

    threads = [threading.Thread(target=hold, daemon=True) for _ in range(80)]
    for thread in threads:
        thread.start()
    time.sleep(2)
    killed = [node for node in range(len(scene.pids)) if node != scene.leader]
    os.kill(scene.pids[killed[0]], signal.SIGKILL)  # one after the other: a majority is there
    time.sleep(scene.seconds)
    ended.set()
    with scene.channel(scene.endpoints[scene.leader]) as channel:
        said = scene.send(channel, "victim", "after-silence", b"x")
    return [held("a09: a write beside them", said, "OK", said == "OK")]


def idle_connections(scene: Scene) -> list[Check]:
    """A11, A24: 200 silent or half-open connections at each port; how long they are borne."""
    ports = {
        "clients": scene.endpoints[scene.leader],
        "TLS": scene.tls_endpoints[scene.leader] if scene.tls_endpoints else "",
        "peers": scene.admins[scene.leader],
    }
    half = b"PRI * HTTP/2.0\r\n"
    held_: list[socket.socket] = []
    for address in filter(None, ports.values()):
        for number in range(200):
            with contextlib.suppress(OSError):
                connection = connect(address, 1.0)
                if number % 2:
                    connection.sendall(half)
                held_.append(connection)
    with scene.channel(scene.endpoints[scene.leader]) as channel:
        said = scene.send(channel, "victim", "beside-silence", b"x")
    try:
        admin = scene.status(scene.leader).role
    except grpc.RpcError as error:
        admin = error.code().name
    end_s = time.monotonic() + 12
    while time.monotonic() < end_s:
        time.sleep(1)
    left = sum(not closed(each) for each in held_)
    for each in held_:
        each.close()
    return [
        held("a11: a new client", said, "OK", said == "OK"),
        held("a11: Status", admin, "answered", admin in ("leader", "follower")),
        held("a24: silent ones left after 12 s", f"{left} of {len(held_)}", "none", left == 0),
    ]
