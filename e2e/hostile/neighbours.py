"""Greedy and malicious neighbours: ids, messages, topics and receipts of others."""

from __future__ import annotations

import contextlib
import gzip
import struct
import threading
import time
from base64 import urlsafe_b64encode
from binascii import crc32
from typing import Any, Final

import grpc

from dledger.broker.command_frame import CommandType, frame
from dledger.broker.message import Columns
from dledger.broker.produce import encode_produce
from dledger.rpc.pb import dledger_pb2 as pb
from dledger.rpc.pb.dledger_pb2_grpc import LedgerStub, TopicsStub
from dledger.rpc.rocketmq_stubs import definition, service
from e2e.harness.checks import Check
from e2e.harness.rocketmq_calls import code_name, send_request
from e2e.hostile.judging import held
from e2e.hostile.scene import ROCKET, Scene, call, caller

_HEADER: Final = struct.Struct("<BBHHHiI")
_OK: Final = 20_000


def _columns(ids: list[str], body: bytes) -> Columns:
    return Columns(message_ids=ids, bodies=[body] * len(ids), born_at_ms=[0] * len(ids))


def dedupe_poison(scene: Scene) -> list[Check]:
    """A03: another's client id and the ids that it will send next, guessed and taken before."""
    client_id, topic = "bank@7@0@1a2b3c", "pay"
    ids = [f"{'01ABCDEF':<22}{n:012d}".replace(" ", "0") for n in range(1_000)]
    with scene.channel(scene.endpoints[scene.leader]) as channel:
        scene.create_topic(channel, topic, 1)
        theirs = encode_produce(
            _columns(ids, b"stolen"), client_id=client_id, topic=topic, queue_id=0
        )
        scene.produce(channel, theirs)
        said = [
            scene.send(channel, topic, each, b"PAYMENT", client=client_id) for each in ids[:300]
        ]
        kept = sum(body == b"PAYMENT" for body in scene.bodies(channel, topic, 1))
        told = _is_told(channel, topic, client_id.rpartition("@")[0])
    lost = said.count("OK") - kept
    return [
        held("a03: payments lost behind an OK", lost, "none", lost == 0),
        held("a03: readers are told the client id", told, "no", not told),
    ]


def _is_told(channel: grpc.Channel, topic: str, client_id: str) -> bool:
    """Whether a reader of a topic is told a producer's client id."""
    answers = LedgerStub(channel).ReadBatches(pb.ReadRequest(topic=topic, queue_id=0), timeout=10)
    return any(client_id.encode() in each.payload for one in answers for each in one.batches)


def raw_produce(topic: bytes, message_id: bytes, *, born_at_ms: int = 0, queue: int = 0) -> bytes:
    """Return a batch of one message, by the layout of the documents: its id may be no text."""
    header = _HEADER.pack(1, 0, 4, len(topic), 0, queue, 1)
    parts = (
        header, b"evil", topic, struct.pack("<q", born_at_ms),
        struct.pack("<2I", 0, len(message_id)), message_id,
        struct.pack("<2I", 0, 6), b"poison",
    )  # fmt: skip
    return frame(CommandType.PRODUCE, *parts)


def poison_messages(scene: Scene) -> list[Check]:
    """A04: messages that no consumer can be given, among two hundred good ones."""
    topic = "orders"
    with scene.channel(scene.endpoints[scene.leader]) as channel:
        scene.create_topic(channel, topic, 4)
        accepted = 0
        for queue in range(4):
            odd = (
                raw_produce(topic.encode(), b"\xff\xfe", queue=queue),
                raw_produce(topic.encode(), b"t%d" % queue, born_at_ms=-(1 << 63), queue=queue),
                raw_produce(topic.encode(), b"u%d" % queue, born_at_ms=(1 << 63) - 1, queue=queue),
            )
            answers = scene.produce(channel, *odd)
            accepted += sum(not each.refused for each in answers)
        for number in range(200):
            scene.send(channel, topic, f"g{number}", b"good %d" % number)
        got: set[bytes] = set()
        end_s = time.monotonic() + 15
        while len(got) < 200 and time.monotonic() < end_s:
            with contextlib.suppress(grpc.RpcError):
                found = scene.receive(channel, topic, "grp", client="reader", invisible_s=60)
                got |= {each.body for each in found if each.body.startswith(b"good")}
        readable = len(scene.bodies(channel, topic, 4))
    return [
        held("a04: poison accepted", accepted, "none", accepted == 0),
        held("a04: good messages delivered", len(got), "200", len(got) == 200),
        held("a04: good messages read", readable, "200", readable >= 200),
    ]


def encodings(scene: Scene) -> list[Check]:
    """B11: eight bodies that are not what they say, GZIP, among a hundred good ones."""
    topic, group = "encoded", "decoders"
    with scene.channel(scene.endpoints[scene.leader]) as channel:
        scene.create_topic(channel, topic, 4)
        taken = 0
        for number in range(100):
            scene.send(channel, topic, f"g{number}", b"good %d" % number)
            if number % 12 == 5:
                request = send_request(topic, f"p{number}", b"evil")
                properties = request.messages[0].system_properties
                properties.body_encoding = definition.Encoding.GZIP
                answer = call(channel, "SendMessage", request, client="stranger")
                taken += code_name(service.SendMessageResponse.FromString(answer)) == "OK"
        good: set[bytes] = set()
        raised, end_s = 0, time.monotonic() + 15
        while len(good) < 100 and time.monotonic() < end_s:
            with contextlib.suppress(grpc.RpcError):
                found = scene.receive(channel, topic, group, client="reader", invisible_s=10)
                try:
                    bodies = [_decode(each) for each in found]
                except OSError:
                    raised += 1
                    continue
                good |= {body for body in bodies if body.startswith(b"good")}
                _ack(
                    channel, group, topic,
                    [each.system_properties.receipt_handle for each in found], "reader",
                )  # fmt: skip
    value = f"{len(good)}; {taken} poisons taken, {raised} answers spoilt"
    return [held("b11: good messages delivered", value, "100", len(good) == 100)]


def _decode(message: Any) -> bytes:
    """Return a body as SDKs do; what raises spoils the whole answer. Raises OSError."""
    if message.system_properties.body_encoding == definition.Encoding.GZIP:
        return gzip.decompress(message.body)
    return bytes(message.body)


def topics_without_end(scene: Scene) -> list[Check]:
    """A15: topics of 1,024 queues until it is refused; then names by QueryRoute."""
    said = ""
    with scene.channel(scene.endpoints[scene.leader]) as channel:
        made = 0
        for number in range(100):
            said = scene.create_topic(channel, f"evil-{number}", 1_024)
            if said:
                break
            made += 1
        for number in range(200):
            request = service.QueryRouteRequest(topic=definition.Resource(name=f"auto{number}"))
            with contextlib.suppress(grpc.RpcError):
                call(channel, "QueryRoute", request)
        began_s = time.monotonic()
        topics = TopicsStub(channel).ListTopics(pb.ListTopicsRequest(), timeout=20).topics
        took_ms = 1_000 * (time.monotonic() - began_s)
    queues = sum(topic.queues for topic in topics)
    return [
        held("a15: the end of topics", said or f"{made} made", "refused by name", bool(said)),
        held("a15: queues in all", queues, "at most 65,536", queues <= 65_536),
        held("a15: ListTopics", f"{took_ms:.0f} ms", "answered", bool(topics)),
    ]


def ids_pushed_out(scene: Scene) -> list[Check]:
    """A20: 529,000 ids of other clients; a quiet producer repeats what it sent before."""
    with scene.channel(scene.endpoints[scene.leader]) as channel:
        scene.create_topic(channel, "quiet", 1)
        scene.create_topic(channel, "junk", 4)
        scene.send(channel, "quiet", "the-id", b"transfer 100", client="quiet")
        batches = [
            encode_produce(
                _columns([f"{k}x{n}" for n in range(4_096)], b"x"),
                client_id=f"c{k % 4}",
                topic="junk",
            )
            for k in range(129)
        ]
        with contextlib.suppress(grpc.RpcError):
            scene.produce(channel, *batches)
        again = scene.send(channel, "quiet", "the-id", b"transfer 100", client="quiet")
        copies = scene.bodies(channel, "quiet", 1).count(b"transfer 100")
    return [
        held("a20: the retry", again, "OK", again == "OK"),
        held("a20: copies of the transfer", copies, "1", copies == 1),
    ]


def forged_receipts(scene: Scene) -> list[Check]:
    """A16: guessed handles, handles of numbers without end, terminations in another's name."""
    topic, group = "receipts", "grp"
    with scene.channel(scene.endpoints[scene.leader]) as channel:
        scene.create_topic(channel, topic, 4)
        for number in range(64):
            scene.send(channel, topic, f"r{number}", b"m%d" % number)
        victim = scene.receive(channel, topic, group, client="victim-c", invisible_s=60)
        forged = [
            _old_handle(queue, offset, receive_id, group, topic)
            for queue in range(4)
            for offset in range(16)
            for receive_id in range(1, 4)
        ]
        good = sum(code == _OK for code in _ack(channel, group, topic, forged, "other"))
        shared = _beside_bad_ones(scene, channel, topic)
        stolen = _terminated_by_another(scene, channel, topic)
    return [
        held("a16: messages held", len(victim), "some", bool(victim)),
        held("a16: acked by guesses", good, "none", good == 0),
        held("a16: honest acks beside bad ones", f"{shared[0]} of {shared[1]}", "all",
             shared[0] == shared[1] > 0),
        held("a16: given to a client that ended another", stolen, "none", stolen == 0),
    ]  # fmt: skip


def _old_handle(queue: int, offset: int, receive_id: int, group: str, topic: str) -> str:
    """Return a handle as anybody can compute it: what handles were before they were signed."""
    fields = struct.pack("<BHQQ", 1, queue, offset, receive_id)
    check = struct.pack("<I", crc32(f"{group}\0{topic}".encode(), crc32(fields)))
    return urlsafe_b64encode(fields + check).rstrip(b"=").decode()


def _ack(
    channel: grpc.Channel, group: str, topic: str, handles: list[str], client: str
) -> list[int]:
    entries = [service.AckMessageEntry(message_id="m", receipt_handle=each) for each in handles]
    request = service.AckMessageRequest(
        group=definition.Resource(name=group),
        topic=definition.Resource(name=topic),
        entries=entries,
    )
    raw = call(channel, "AckMessage", request, client=client, timeout_s=8)
    answer: Any = service.AckMessageResponse.FromString(raw)
    return [each.status.code for each in answer.entries] or [answer.status.code]


def _beside_bad_ones(scene: Scene, channel: grpc.Channel, topic: str) -> tuple[int, int]:
    """Ack honestly while another client acks what no command may carry; return (good, all)."""
    ended = threading.Event()
    bad = [_old_handle(0, (1 << 64) - 1, (1 << 64) - 1, "grp2", topic)]

    def flood() -> None:
        with scene.channel(scene.endpoints[scene.leader]) as other:
            while not ended.is_set():
                with contextlib.suppress(grpc.RpcError):
                    _ack(other, "grp2", topic, bad, "evil")

    threads = [threading.Thread(target=flood) for _ in range(2)]
    for thread in threads:
        thread.start()
    good = asked = 0
    try:
        for _ in range(3):
            for each in scene.receive(channel, topic, "grp2", client="honest-c", invisible_s=60):
                handle = each.system_properties.receipt_handle
                asked += 1
                good += _ack(channel, "grp2", topic, [handle], "honest-c") == [_OK]
    finally:
        ended.set()
        for thread in threads:
            thread.join()
    return good, asked


def _terminated_by_another(scene: Scene, channel: grpc.Channel, topic: str) -> int:
    """Return how many messages of a client with Telemetry another one gets by ending it."""
    ended = threading.Event()
    settings = definition.Settings(
        client_type=definition.PRODUCER,
        subscription=definition.Subscription(group=definition.Resource(name="grp3")),
    )
    command = service.TelemetryCommand(settings=settings).SerializeToString()

    def commands() -> Any:
        yield command
        ended.wait(20)

    telemetry = channel.stream_stream(f"{ROCKET}Telemetry")(
        commands(), timeout=30, metadata=caller("push-c")
    )
    try:
        next(telemetry)
        mine = scene.receive(channel, topic, "grp3", client="push-c", renew=True)
        request = service.NotifyClientTerminationRequest(group=definition.Resource(name="grp3"))
        with scene.channel(scene.endpoints[scene.leader]) as other:
            with contextlib.suppress(grpc.RpcError):
                call(other, "NotifyClientTermination", request, client="push-c")
            theirs = scene.receive(other, topic, "grp3", client="other-c")
    finally:
        ended.set()
        telemetry.cancel()
    ids = {each.system_properties.message_id for each in mine}
    return sum(each.system_properties.message_id in ids for each in theirs)
