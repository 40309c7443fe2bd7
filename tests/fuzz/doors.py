"""The client port as it is: bytes to every method of every service, over gRPC."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Hashable
from random import Random
from typing import Any, ClassVar, Final

import grpc
import grpc.aio
from google.protobuf.timestamp_pb2 import Timestamp

from dledger.rpc.pb import dledger_pb2 as pb
from dledger.rpc.rocketmq_stubs import SERVICE_NAME, definition, service
from dledger.server.config import GRPC, NATIVE
from tests.fuzz import clients
from tests.fuzz.logs import a_batch
from tests.fuzz.mutation import TEXTS, mutated
from tests.fuzz.target import Broken
from tests.requests import memory_group as made

_DEADLINE_S: Final = 0.5
"""Polls and readers wait as long; that they are not answered by then is nothing wrong."""
_OF_THE_CLIENT: Final = "Internal error from Core"
"""What grpc's client says if a call is answered before it has written the request."""
_CALLS: Final = 256
"""After so many the node is a new one: what is stored would make each reader's answer longer."""
_RESOURCE: Final = definition.Resource(name="t")
_PLACE: Final[dict[str, Any]] = {
    "group": _RESOURCE,
    "message_queue": definition.MessageQueue(topic=_RESOURCE),
}
_ROCKET: Final = f"/{SERVICE_NAME}/"
_METHODS: Final[tuple[tuple[str, Any], ...]] = (
    (f"{_ROCKET}QueryRoute", service.QueryRouteRequest(topic=_RESOURCE)),
    (f"{_ROCKET}QueryAssignment", service.QueryAssignmentRequest(topic=_RESOURCE, group=_RESOURCE)),
    (
        f"{_ROCKET}Heartbeat",
        service.HeartbeatRequest(group=_RESOURCE, client_type=definition.PRODUCER),
    ),
    (f"{_ROCKET}SendMessage", clients.Sends.seeds[0]),
    (f"{_ROCKET}ReceiveMessage", clients.Receives.seeds[0]),
    (f"{_ROCKET}AckMessage", service.AckMessageRequest(group=_RESOURCE, topic=_RESOURCE)),
    (
        f"{_ROCKET}ChangeInvisibleDuration",
        service.ChangeInvisibleDurationRequest(group=_RESOURCE, topic=_RESOURCE),
    ),
    (
        f"{_ROCKET}NotifyClientTermination",
        service.NotifyClientTerminationRequest(group=_RESOURCE),
    ),
    (f"{_ROCKET}Telemetry", clients.Telemetry.seeds[0]),
    (
        f"{_ROCKET}RecallMessage",
        service.RecallMessageRequest(topic=_RESOURCE, recall_handle="AQAAAAAAAAAA"),
    ),
    (f"{_ROCKET}EndTransaction", service.EndTransactionRequest(topic=_RESOURCE)),
    (f"{_ROCKET}PullMessage", service.PullMessageRequest(**_PLACE, batch_size=1)),
    (f"{_ROCKET}GetOffset", service.GetOffsetRequest(**_PLACE)),
    (f"{_ROCKET}UpdateOffset", service.UpdateOffsetRequest(**_PLACE)),
    (
        f"{_ROCKET}QueryOffset",
        service.QueryOffsetRequest(
            message_queue=_PLACE["message_queue"],
            query_offset_policy=definition.QueryOffsetPolicy.TIMESTAMP,
            timestamp=Timestamp(seconds=1),
        ),
    ),
    ("/dledger.v1.Ledger/Append", clients.Appends.seeds[0]),
    ("/dledger.v1.Ledger/Recall", pb.RecallRequest(topic="t", recall_handle="AQAAAAAAAAAA")),
    (
        "/dledger.v1.Ledger/EndTransaction",
        pb.EndTransactionRequest(topic="t", transaction_id="AQAAAAAAAAAA", commits=True),
    ),
    ("/dledger.v1.Ledger/Produce", None),
    ("/dledger.v1.Ledger/Read", pb.ReadRequest(topic="t")),
    ("/dledger.v1.Ledger/ReadBatches", pb.ReadRequest(topic="t")),
    ("/dledger.v1.Ledger/ReadIndex", pb.ReadIndexRequest()),
    ("/dledger.v1.Topics/CreateTopic", pb.CreateTopicRequest(name="t", queues=4)),
    ("/dledger.v1.Topics/ListTopics", pb.ListTopicsRequest()),
    ("/dledger.v1.Admin/Status", pb.StatusRequest()),
)
"""Each with a request to begin from; None: a batch of the native protocol."""


class Doors(clients.Protobuf):
    """Any bytes to any method: an answer, a refusal, never a fault of the node's own."""

    name = "doors"
    refuses = ()
    server: ClassVar[str] = GRPC
    _IDS: ClassVar = ("client", "client", "client", *[t for t in TEXTS if t.isprintable()])

    def __init__(self) -> None:
        logging.getLogger("dledger").setLevel(logging.CRITICAL + 1)
        self._loop = asyncio.new_event_loop()
        self._calls = 0
        self._loop.run_until_complete(self._start())

    async def _start(self) -> None:
        made.client_server = self.server
        try:
            self._group = made.memory_group()
            await self._connect()
        finally:
            made.client_server = NATIVE

    async def _connect(self) -> None:
        group = await self._group.__aenter__()
        self._channel = grpc.aio.insecure_channel(
            f"127.0.0.1:{group.nodes[0].port}", options=(("grpc.use_local_subchannel_pool", 1),)
        )

    async def _stop(self) -> None:
        await self._channel.close()
        await self._group.__aexit__(None, None, None)

    def close(self) -> None:
        self._loop.run_until_complete(self._stop())
        self._loop.close()

    def draw(self, rng: Random) -> bytes:
        method = rng.randrange(len(_METHODS))
        seed = _METHODS[method][1]
        if seed is None:
            batch = pb.ProduceBatch(id=rng.choice((0, 1, 2**63 - 1)), command=a_batch(rng))
            seed = pb.ProduceBatches(batches=[batch])
        self.seeds = (seed,)
        return bytes([method, rng.randrange(len(self._IDS))]) + super().draw(rng)

    def mutate(self, rng: Random, data: bytes) -> bytes:
        return data[:2] + mutated(rng, data[2:])

    def feed(self, data: bytes) -> Hashable:
        if len(data) < 2:
            return "nothing"
        method = _METHODS[data[0] % len(_METHODS)][0]
        client = self._IDS[data[1] % len(self._IDS)]
        said = self._loop.run_until_complete(self._call(method, client, data[2:]))
        self._calls += 1
        if self._calls % _CALLS == 0:
            self._loop.run_until_complete(self._stop())
            self._loop.run_until_complete(self._start())
        ours = said.startswith(("UNKNOWN", "INTERNAL:")) and _OF_THE_CLIENT not in said
        if "internal error of the node" in said or ours:
            raise Broken(f"{method.rpartition('/')[2]} finds a fault of our own: {said[:120]}")
        return method, said.partition(":")[0][:40]

    async def _call(self, method: str, client: str, data: bytes) -> str:
        metadata = (("x-mq-client-id", client.encode("ascii", "replace").decode()),)
        call = self._channel.stream_stream(method)(
            iter([data]), timeout=_DEADLINE_S, metadata=metadata
        )
        said = ""
        try:
            async for answer in call:
                said = said or _status_in(method, answer)
                if method.endswith(("Telemetry", "Produce")):
                    break
        except grpc.aio.AioRpcError as error:
            return f"{error.code().name}: {error.details()}"
        finally:
            call.cancel()
        return said or "answered"


class NativeDoors(Doors):
    """The same at a port that our own server serves.

    No metadata has outer spaces: by RFC 9113, 8.2.1 such a call is malformed, and HTTP/2 resets it.
    """

    name = "native-doors"
    server = NATIVE
    _IDS: ClassVar = tuple(text for text in Doors._IDS if text == text.strip(" "))


class LinkedDoors(NativeDoors):
    """The same behind the link of a door process."""

    name = "linked-doors"
    server = made.DOOR


def _status_in(method: str, answer: bytes) -> str:
    """Return what an answer of the RocketMQ protocol says of itself; "" of others."""
    name = method.rpartition("/")[2]
    kind = getattr(service, "TelemetryCommand" if name == "Telemetry" else f"{name}Response", None)
    if kind is None or not method.startswith(_ROCKET):
        return ""
    status = kind.FromString(answer).status
    return f"{status.code}: {status.message}"
