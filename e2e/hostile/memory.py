"""What a node holds for calls that nobody counts: bodies that never come, answers nobody reads."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Iterator
from typing import Any, Final

import grpc

from dledger.broker.message import Columns
from dledger.broker.produce import encode_produce
from dledger.rpc.pb import dledger_pb2 as pb
from dledger.rpc.rocketmq_stubs import definition, service
from e2e.harness.checks import Check
from e2e.harness.rocketmq_calls import receive_request
from e2e.hostile.judging import held
from e2e.hostile.scene import LEDGER, ROCKET, Scene, caller, field_of, silence

_PADDING: Final = field_of(1_000, bytes(18 << 20))
_LARGE: Final = 15
"""Polls of so many bytes: ten gzipped, five plain."""


def bodies_that_never_come(scene: Scene) -> list[Check]:
    """A02: 120 calls on one connection, without a byte of body, again and again."""
    return _loris(scene, scene.leader, "a02")


def bodies_that_never_come_at_a_follower(scene: Scene) -> list[Check]:
    """A02: the same at a follower, which forwards what it gets."""
    return _loris(scene, scene.follower(), "a02f")


def _loris(scene: Scene, node: int, name: str) -> list[Check]:
    ended = threading.Event()
    made, who = 0, caller("loris")
    with scene.channel(scene.endpoints[node]) as channel:
        calls: list[Any] = []
        end_s = time.monotonic() + scene.seconds
        with contextlib.suppress(grpc.RpcError):
            channel.unary_unary(f"{ROCKET}Heartbeat")(_PADDING, timeout=5, metadata=who)
        begin = channel.stream_unary(f"{ROCKET}Heartbeat").future
        while time.monotonic() < end_s:
            calls = [call for call in calls if not call.done()]
            while len(calls) < 120:
                calls.append(begin(silence(ended), timeout=30, metadata=who))
                made += 1
            time.sleep(0.5)
        ended.set()
        for call in calls:
            call.cancel()
    return [held(f"{name}: calls without a body", made, "some", made > 0)]


def padded_polls(scene: Scene) -> list[Check]:
    """A13: polls of 18 MiB, gzipped and plain, and a hundred of 200 KiB."""
    request = receive_request("empty", "g", queue_id=0, limit=1, wait_s=60, auto_renew=True)
    raw = request.SerializeToString()
    with scene.channel(scene.endpoints[scene.leader]) as channel:
        poll = channel.unary_stream(f"{ROCKET}ReceiveMessage")
        calls = [
            poll(raw + padding, timeout=60, metadata=caller("poller"), compression=how)
            for padding, how in [
                *[(_PADDING, grpc.Compression.Gzip)] * 10,
                *[(_PADDING, grpc.Compression.NoCompression)] * 5,
                *[(field_of(1_000, bytes(200 << 10)), grpc.Compression.NoCompression)] * 100,
            ]
        ]
        time.sleep(4)
        refused = sum(map(_is_refused, calls[:_LARGE]))
        for call in calls:
            call.cancel()
    value = f"{refused} of {_LARGE} refused"
    return [held("a13: polls of 18 MiB", value, "all", refused == _LARGE)]


def _is_refused(poll: Any) -> bool:
    """Whether a poll has been answered by a status, of its own or of gRPC, and not with OK."""
    try:
        answer = service.ReceiveMessageResponse.FromString(next(poll))
    except grpc.RpcError:
        return True
    except StopIteration:
        return False
    return bool(answer.status.code == definition.Code.PAYLOAD_TOO_LARGE)


def silent_readers(scene: Scene) -> list[Check]:
    """A13: 200 streams of a queue of 24 MiB that nobody reads."""
    with scene.channel(scene.endpoints[scene.leader]) as channel:
        scene.create_topic(channel, "big", 1)
        body = os.urandom(1 << 20)
        for number in range(24):
            scene.produce(channel, _batch("big", f"b{number}", body))
        request = pb.ReadRequest(topic="big", queue_id=0, follow=True).SerializeToString()
        read = channel.unary_stream(f"{LEDGER}ReadBatches")
        calls = [read(request, timeout=60) for _ in range(200)]
        time.sleep(4)
        alive = sum(call.is_active() for call in calls)
        for call in calls:
            call.cancel()
    return [held("a13: silent readers", f"{alive} of 200 are served", "some", True)]


def _batch(topic: str, message_id: str, body: bytes) -> bytes:
    columns = Columns(message_ids=[message_id], bodies=[body], born_at_ms=[0])
    return encode_produce(columns, client_id="loud", topic=topic)


def batches_without_end(scene: Scene) -> list[Check]:
    """A13: eight streams of batches of 8 MiB, for a topic that is not there."""
    batches = [
        pb.ProduceBatch(id=n, command=_batch("nowhere", f"i{n}", bytes(1 << 20))) for n in range(8)
    ]
    raw = pb.ProduceBatches(batches=batches).SerializeToString()
    end_s = time.monotonic() + 4

    def forever() -> Iterator[bytes]:
        while time.monotonic() < end_s:
            yield raw

    with scene.channel(scene.endpoints[scene.leader]) as channel:
        calls = [channel.stream_stream(f"{LEDGER}Produce")(forever(), timeout=20) for _ in range(8)]
        time.sleep(4)
        for call in calls:
            call.cancel()
    return [held("a13: batches without end", len(calls), "some", True)]


def client_ids(scene: Scene) -> list[Check]:
    """A13: two thousand client ids of 7,008 characters.

    They are more than a call keeps, and so many refused calls end their connection.
    """
    beat = service.HeartbeatRequest(client_type=definition.PRODUCER).SerializeToString()
    served = 0
    with scene.channel(scene.endpoints[scene.leader]) as channel:
        call = channel.unary_unary(f"{ROCKET}Heartbeat")
        for first in range(0, 2_048, 64):
            window = [
                call.future(beat, timeout=10, metadata=caller(f"{n:08d}" + "x" * 7_000))
                for n in range(first, first + 64)
            ]
            for each in window:
                with contextlib.suppress(grpc.RpcError):
                    answer = service.HeartbeatResponse.FromString(each.result())
                    served += answer.status.code == 20_000
    return [held("a13: endless client ids", f"{served} served", "none", served == 0)]
