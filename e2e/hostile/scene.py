"""Where an attack is made: a group's ports, and what anybody can learn of it."""

from __future__ import annotations

import contextlib
import json
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import grpc

from dledger.rpc.pb import dledger_pb2 as pb
from dledger.rpc.pb.dledger_pb2_grpc import AdminStub, LedgerStub, TopicsStub
from dledger.rpc.rocketmq_stubs import SERVICE_NAME, service
from e2e.harness.processes import usage_of
from e2e.harness.rocketmq_calls import code_name, receive_request, send_request

_HTTP_AFTER_ADMIN: Final = 100
"""Where `dledger dev` has the health ports."""
OPTIONS: Final = (
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.enable_http_proxy", 0),
)
ROCKET: Final = f"/{SERVICE_NAME}/"
LEDGER: Final = "/dledger.v1.Ledger/"


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """A running group, by its addresses; whoever attacks it is another process.

    Attributes:
        endpoints: Of the clients' ports that are attacked, by node.
        tls_endpoints: Of the TLS ones; the same, if *tls*.
        admins: Of the peers' ports, by node.
        pids: Of the nodes.
        leader: Which one led.
        seconds: How long an attack lasts, about.
        tls: Whether clients speak TLS here.
        trusted: What they trust then, PEM.
        sources: The addresses that a stranger has.
    """

    endpoints: list[str]
    tls_endpoints: list[str]
    admins: list[str]
    pids: list[int]
    leader: int
    seconds: float
    tls: bool = False
    trusted: str = ""
    sources: tuple[str, ...] = ("127.0.0.2",)

    def encode(self) -> str:
        """Return it as JSON."""
        return json.dumps(asdict(self))

    @classmethod
    def decode(cls, text: str) -> Scene:
        """Return what `encode` was asked for."""
        fields = json.loads(text)
        return cls(**fields | {"sources": tuple(fields["sources"])})

    def http(self, node: int) -> tuple[str, int]:
        """Return the address of a node's health port."""
        host, _, port = self.admins[node].partition(":")
        return host, int(port) + _HTTP_AFTER_ADMIN

    def address(self, node: int) -> tuple[str, int]:
        """Return the host and port where a node's clients are."""
        host, _, port = self.endpoints[node].partition(":")
        return host, int(port)

    def source(self, number: int) -> str:
        """Return the address from which a stranger's connection of that number comes."""
        return self.sources[number % len(self.sources)]

    def tls_context(self) -> ssl.SSLContext:
        """Return what a stranger shows and asks: he believes anybody."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        context.set_alpn_protocols(["h2"])
        return context

    def follower(self) -> int:
        """Return a node that did not lead."""
        return (self.leader + 1) % len(self.endpoints)

    @contextmanager
    def channel(self, address: str) -> Iterator[grpc.Channel]:
        """Open a connection of its own."""
        if self.tls and address in self.endpoints:
            trusted = grpc.ssl_channel_credentials(self.trusted.encode())
            with grpc.secure_channel(address, trusted, options=OPTIONS) as channel:
                yield channel
        else:
            with grpc.insecure_channel(address, options=OPTIONS) as channel:
                yield channel

    def status(self, node: int, timeout_s: float = 5.0) -> Any:
        """Return what a node says of itself to anybody."""
        with self.channel(self.admins[node]) as channel:
            return AdminStub(channel).Status(pb.StatusRequest(), timeout=timeout_s)

    def send(
        self, channel: grpc.Channel, topic: str, message_id: str, body: bytes,
        *, client: str = "honest",
    ) -> str:  # fmt: skip
        """Send one message; return the code's name, or gRPC's."""
        request = send_request(topic, message_id, body)
        try:
            answer = call(channel, "SendMessage", request, client=client)
        except grpc.RpcError as error:
            return str(error.code().name)
        return code_name(service.SendMessageResponse.FromString(answer))

    def receive(
        self, channel: grpc.Channel, topic: str, group: str, *, client: str, renew: bool = False,
        invisible_s: int = 30,
    ) -> list[Any]:  # fmt: skip
        """Poll once for a second; return the messages. Raises RpcError."""
        request = receive_request(topic, group, auto_renew=renew, invisible_s=invisible_s, wait_s=1)
        answers = channel.unary_stream(f"{ROCKET}ReceiveMessage")(
            request.SerializeToString(), timeout=8, metadata=caller(client)
        )
        parsed = map(service.ReceiveMessageResponse.FromString, answers)
        return [each.message for each in parsed if each.HasField("message")]

    def produce(self, channel: grpc.Channel, *commands: bytes) -> list[Any]:
        """Send batches of the native protocol on one stream; return the answers."""
        numbered = enumerate(commands, start=1)
        batches = [
            pb.ProduceBatches(batches=[pb.ProduceBatch(id=n, command=c)]) for n, c in numbered
        ]
        found: list[Any] = []
        for answers in LedgerStub(channel).Produce(iter(batches), timeout=60):
            found += answers.answers
        return found

    def create_topic(self, channel: grpc.Channel, name: str, queues: int) -> str:
        """Create a topic; return "" or gRPC's sentence."""
        request = pb.CreateTopicRequest(name=name, queues=queues)
        try:
            TopicsStub(channel).CreateTopic(request, timeout=10)
        except grpc.RpcError as error:
            return str(error.details())
        return ""

    def bodies(self, channel: grpc.Channel, topic: str, queues: int) -> list[bytes]:
        """Return what a topic holds at the node that the channel leads to."""
        found: list[bytes] = []
        for queue_id in range(queues):
            request = pb.ReadRequest(topic=topic, queue_id=queue_id)
            for answer in LedgerStub(channel).Read(request, timeout=10):
                found += [one.record.body for one in answer.records]
        return found


def caller(client_id: str) -> tuple[tuple[str, str], ...]:
    """Return the metadata of a client."""
    return (("x-mq-client-id", client_id),)


def call(
    channel: grpc.Channel, method: str, request: Any, *, client: str = "c", timeout_s: float = 5
) -> bytes:
    """Call a unary method of RocketMQ; return the answer, not decoded. Raises RpcError."""
    rocket = channel.unary_unary(f"{ROCKET}{method}")
    return bytes(rocket(request.SerializeToString(), timeout=timeout_s, metadata=caller(client)))


def silence(ended: threading.Event) -> Iterator[bytes]:
    """Keep a stream of requests open without one, until *ended* or for a minute."""
    ended.wait(60)
    yield from ()


def connect(address: str | tuple[str, int], timeout_s: float = 2.0) -> socket.socket:
    """Open a TCP connection. Raises OSError."""
    if isinstance(address, str):
        host, _, port = address.partition(":")
        address = host, int(port)
    return socket.create_connection(address, timeout_s)


def closed(connection: socket.socket) -> bool:
    """Whether the other end has closed it."""
    connection.setblocking(False)
    try:
        while piece := connection.recv(1 << 16):
            del piece
    except BlockingIOError:
        return False
    except OSError:
        return True
    return True


def in_threads(count: int, work: Callable[[int], object]) -> None:
    """Do *work* in so many threads at once, each with its number; return when all have ended."""
    with ThreadPoolExecutor(count) as pool:
        list(pool.map(work, range(count)))


def memory_mib(pid: int) -> float | None:
    """Return the resident memory of a node, its door processes' included; None if it is gone."""
    usage = usage_of(pid)
    if usage is None:
        return None
    doors = filter(None, map(usage_of, _children(pid)))
    return usage.rss_mib + sum(door.rss_mib for door in doors)


def _children(pid: int) -> list[int]:
    found: list[int] = []
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(OSError):
            found += map(int, task.read_text("ascii").split())
    return found


def varint(value: int) -> bytes:
    """Return protobuf's varint."""
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def field_of(number: int, data: bytes) -> bytes:
    """Return a field of bytes."""
    return varint(number << 3 | 2) + varint(len(data)) + data


def repeated(number: int, size_bytes: int) -> bytes:
    """Return an empty field as often as *size_bytes* have room: two bytes an element."""
    unit = field_of(number, b"")
    return unit * (size_bytes // len(unit))
