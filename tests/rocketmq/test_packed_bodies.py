"""A body that says GZIP: no door takes one that is none, and none is told of as if it were one.

Clients' libraries unpack what says so unasked, and one that fails loses all that came with it.
"""

from __future__ import annotations

import asyncio
import gzip
import threading
import zlib
from hashlib import md5

import grpc.aio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dledger.broker.message import Columns, Encoding
from dledger.broker.produce import encode_produce
from dledger.checks import packed
from dledger.checks.packed import Content, Form, check_small, content_of, in_form, small_content_of
from dledger.client import Client
from dledger.requests import unpacking
from dledger.requests.unpacking import Unpacking
from dledger.rpc.pb import dledger_pb2 as pb
from dledger.rpc.rocketmq_stubs import definition
from dledger.rpc.status import Code, Rejected
from tests.requests.memory_group import MemoryGroup
from tests.requests.rocketmq_client import RocketClient, code, message
from tests.waiting import eventually

pytestmark = pytest.mark.found
"""found: security A4."""
GZIP = definition.Encoding.GZIP
MIB = 1 << 20
LIMIT = 4 * MIB
HELLO = gzip.compress(b"hello")
NAMED = b"\x1f\x8b\x08\x08" + bytes(5) + b"\xffname\0" + HELLO[10:]
CHUNK = 128 << 10
"""What is unpacked in one step."""
BAD = {
    "no gzip": (b"evil", "MESSAGE_CORRUPTED"),
    "one byte": (b"\x1f", "MESSAGE_CORRUPTED"),
    "its magic alone": (b"\x1f\x8b", "MESSAGE_CORRUPTED"),
    "one byte of zlib's": (b"\x78", "MESSAGE_CORRUPTED"),
    "LZ4": (b"\x04\x22\x4d\x18....", "MESSAGE_CORRUPTED"),
    "cut short": (HELLO[:-1], "MESSAGE_CORRUPTED"),
    "a wrong sum": (HELLO[:-8] + b"12345678", "MESSAGE_CORRUPTED"),
    "a wrong sum of zlib's": (zlib.compress(b"hello")[:-4] + b"1234", "MESSAGE_CORRUPTED"),
    "more behind it": (HELLO + b"x", "MESSAGE_CORRUPTED"),
    "another behind it": (HELLO + HELLO, "MESSAGE_CORRUPTED"),
    "a name": (NAMED, "MESSAGE_CORRUPTED"),
    "nothing in it": (gzip.compress(b""), "MESSAGE_BODY_EMPTY"),
    "a byte too many": (gzip.compress(bytes(LIMIT + 1)), "MESSAGE_BODY_TOO_LARGE"),
    "much too much": (zlib.compress(bytes(16 * MIB)), "MESSAGE_BODY_TOO_LARGE"),
}


# -- the rule --------------------------------------------------------------------------------------


@given(
    content=st.one_of(
        st.binary(min_size=1, max_size=300),
        st.sampled_from([CHUNK - 1, CHUNK, CHUNK + 1, 3 * CHUNK]).map(bytes),
    ),
    level=st.integers(0, 9),
    form=st.sampled_from(Form),
    to=st.sampled_from(Form),
)
def test_each_form_becomes_the_other(content: bytes, level: int, form: Form, to: Form) -> None:
    """What comes out, its size and its sums stay; Python's own functions unpack both."""
    body = (gzip if form is Form.GZIP else zlib).compress(content, level)
    if form is Form.ZLIB and body[0] != 0x78:
        return  # of a small window, which no client makes

    found = content_of(body)

    assert (found.form, found.size_bytes) == (form, len(content))
    assert (gzip if to is Form.GZIP else zlib).decompress(in_form(body, found, to)) == content


@pytest.mark.parametrize("what", BAD)
def test_what_is_not_what_it_says_is_refused_with_a_code(what: str) -> None:
    """Whatever it begins as; and no more than the limit is unpacked to find out."""
    body, refused = BAD[what]

    with pytest.raises(Rejected) as raised:
        content_of(body)

    assert Code.Name(raised.value.code) == refused


@given(
    body=st.sampled_from([HELLO, zlib.compress(b"hello"), gzip.compress(bytes(300_000))]),
    place=st.integers(0, 400),
    other=st.integers(0, 255),
    ends=st.binary(max_size=12),
)
def test_a_damaged_body_is_refused_or_is_one(
    body: bytes, place: int, other: int, ends: bytes
) -> None:
    """Whatever the bytes, nothing else is raised; and what is let in, Python unpacks."""
    damaged = bytearray(body + ends)
    damaged[place % len(damaged)] = other

    try:
        found = content_of(bytes(damaged))
    except Rejected:
        return
    unpacked = gzip.decompress(in_form(bytes(damaged), found, Form.GZIP))
    assert len(unpacked) == found.size_bytes


def test_the_largest_body_fits_packed() -> None:
    """4 MiB come out, of 4 KiB and of more than 4 MiB alike."""
    assert content_of(gzip.compress(bytes(LIMIT))).size_bytes == LIMIT
    assert content_of(gzip.compress(bytes(LIMIT), 0)).size_bytes == LIMIT


def test_little_work_is_done_at_once_and_the_rest_is_named() -> None:
    """By bytes that go in, by bytes that come out, and by both of a request in all."""
    small, long, wide = HELLO, gzip.compress(bytes(8 << 10), 0), gzip.compress(bytes(MIB))
    many = [gzip.compress(bytes(40 << 10))] * 10

    assert small_content_of(small) is not None
    assert (small_content_of(long), small_content_of(wide)) == (None, None)
    assert check_small([small, long, wide]) == [long, wide]
    assert 0 < len(check_small(many)) < len(many)
    assert len(check_small([HELLO] * 1000)) > 500


@pytest.mark.found
def test_a_body_that_tells_its_size_is_not_unpacked_to_see_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """6,000 of 4 KiB that told 4 MiB, each unpacked to 64 KiB at once, cost a leader its lead."""
    wide = gzip.compress(bytes(MIB))
    monkeypatch.setattr(packed, "_content_of", None)
    assert small_content_of(wide) is None

    monkeypatch.undo()
    with pytest.raises(Rejected, match="more comes out than its end says"):
        small_content_of(wide[:-4] + (1_000).to_bytes(4, "little"))


# -- the doors -------------------------------------------------------------------------------------


@pytest.mark.contract
async def test_no_send_of_what_is_not_packed_is_stored(
    group: MemoryGroup, client: RocketClient
) -> None:
    """Each is refused by itself, whether looking into it takes long or not; good ones are stored.

    One bad message refuses the whole of its request.
    """
    await client.send(message(100))
    answers = [
        await client.send(message(n, body=body, body_encoding=GZIP))
        for n, (body, _) in enumerate(BAD.values())
    ]
    both = await client.send(
        message(50, body=HELLO, body_encoding=GZIP), message(51, body=b"evil", body_encoding=GZIP)
    )
    large = gzip.compress(bytes(LIMIT))
    good = [HELLO, large, zlib.compress(b"hello")]
    stored = [
        await client.send(message(60 + n, body=body, body_encoding=GZIP))
        for n, body in enumerate(good)
    ]

    assert [code(each.status) for each in answers] == [refused for _, refused in BAD.values()]
    assert code(both.status) == "MESSAGE_CORRUPTED"
    assert [code(each.status) for each in stored] == ["OK"] * 3
    assert group.nodes[0].engine.state.topics.messages("t") == 4


def batch(*bodies: bytes, **columns: object) -> bytes:
    """Return a PRODUCE command of packed bodies as no client of ours makes it."""
    count = len(bodies)
    more: dict[str, object] = {"encodings": [Encoding.GZIP] * count} | columns
    host = str(more.pop("host", ""))
    return encode_produce(
        Columns(message_ids=[""] * count, bodies=bodies, born_at_ms=[0] * count, **more),  # type: ignore[arg-type]
        client_id="other",
        topic="t",
        queue_id=0,
        born_host=host,
    )


async def test_no_batch_of_what_is_not_packed_is_stored(group: MemoryGroup) -> None:
    """A stream's batches are refused one by one; those around them are stored in their order."""
    async with Client(group.addresses[0]) as client:
        await client.create_topic("t", queues=1)
    large = gzip.compress(bytes(LIMIT))
    commands = [
        batch(HELLO, large), batch(HELLO, b"evil"), batch(zlib.compress(bytes(16 * MIB))),
        batch(HELLO, trace_contexts=["t" * 65_537]), batch(HELLO, host="h" * 256),
        batch(HELLO, tags=["t" * 65_537]), batch(zlib.compress(b"last")),
    ]  # fmt: skip

    async with grpc.aio.insecure_channel(group.addresses[0]) as channel:
        call = channel.stream_stream("/dledger.v1.Ledger/Produce")()
        batches = [pb.ProduceBatch(id=n, command=each) for n, each in enumerate(commands)]
        await call.write(pb.ProduceBatches(batches=batches).SerializeToString())
        answers: dict[int, str] = {}
        while len(answers) < len(commands):
            said = pb.ProduceAnswers.FromString(await call.read()).answers
            answers |= {each.id: each.refused for each in said}
        await call.done_writing()

    assert [bool(answers[n]) for n in range(len(commands))] == [False, *[True] * 5, False]
    assert "GZIP" in answers[1]
    assert str(LIMIT) in answers[2]
    assert await group.bodies("t") == [HELLO, large, zlib.compress(b"last")]


async def test_texts_that_readers_get_unasked_are_bounded(client: RocketClient) -> None:
    """A small body in a frame that some clients do not take would stop them as well."""
    tag = await client.send(message(1, tag="t" * 65_537))
    trace = await client.send(message(2, trace_context="t" * 65_537))
    both = await client.send(message(3, tag="t" * 65_536, trace_context="t" * 65_536))

    assert code(tag.status) == "ILLEGAL_MESSAGE_TAG"
    assert code(trace.status) == "MESSAGE_PROPERTIES_TOO_LARGE"
    assert code(both.status) == "OK"


# -- what lies in a log ----------------------------------------------------------------------------


async def test_of_a_body_in_an_older_log_only_what_is_so_is_told(
    group: MemoryGroup, client: RocketClient
) -> None:
    """What is not packed comes as the plain bytes that it is, with their digest, once."""
    async with Client(group.addresses[0]) as native:
        await native.create_topic("t", queues=1)
    bad = [body for body, _ in BAD.values()]
    await group.commit(batch(*bad, HELLO))

    _, got, _ = await client.receive(batch=32)

    assert [each.body for each in got] == [*bad, HELLO]
    encodings = [each.system_properties.body_encoding for each in got]
    assert encodings == [definition.Encoding.IDENTITY] * len(bad) + [GZIP]
    for each in got:
        digest = md5(each.body, usedforsecurity=False).hexdigest().upper()
        assert each.system_properties.body_digest.checksum == digest
    await client.ack(*got)
    group.clock_skew_ms += 3_600_000
    assert (await client.receive(batch=32))[1] == []


async def test_a_packed_body_comes_in_the_form_that_its_reader_unpacks(
    client: RocketClient,
) -> None:
    """A gzip to all but C++, which takes no such, and sends zlib's form under the same word."""
    for n, body in enumerate([HELLO, zlib.compress(b"hello")]):
        await client.send(message(n, body=body, body_encoding=GZIP))

    _, got, _ = await client.receive(batch=32)
    client.metadata = (*client.metadata[:1], ("x-mq-language", "CPP"))
    _, other, _ = await client.receive(group="cpp", batch=32)

    assert [gzip.decompress(each.body) for each in got] == [b"hello"] * 2
    assert [zlib.decompress(each.body) for each in other] == [b"hello"] * 2


async def test_what_is_too_large_for_a_client_costs_it_nothing_beside_it(
    group: MemoryGroup, client: RocketClient
) -> None:
    """It goes back as if it had failed: later, and for good, to a client that takes it."""
    await client.send(message(1, body=b"before"))
    await client.send(message(2, body=bytes(LIMIT)))
    await client.send(message(3, body=b"behind"))
    python = client.metadata
    client.metadata = (*python[:1], ("x-mq-language", "RUST"))
    channel = client.channel
    client.channel = grpc.aio.insecure_channel(group.addresses[0])  # gRPC's default limit

    _, got, _ = await client.receive(batch=32)
    at_once = await client.receive(batch=32)
    await client.channel.close()
    client.metadata, client.channel = python, channel
    await client.ack(*got)
    group.clock_skew_ms += 3_600_000

    assert [each.body for each in got] == [b"before", b"behind"]
    assert at_once[1] == []
    async with grpc.aio.insecure_channel(
        group.addresses[0], options=(("grpc.max_receive_message_length", -1),)
    ) as large:
        client.channel = large
        _, (last,), _ = await client.receive(batch=32)
    client.channel = channel
    assert (len(last.body), last.system_properties.delivery_attempt) == (LIMIT, 2)


# -- the turns -------------------------------------------------------------------------------------


class _Gate:
    """Stands in for looking into a body, which takes as long as the test wants."""

    def __init__(self) -> None:
        self.begun: list[bytes] = []
        self.open = threading.Semaphore(0)

    def content_of(self, body: bytes) -> Content:
        self.begun.append(body)
        assert self.open.acquire(timeout=60)
        return Content(form=Form.GZIP, size_bytes=1, crc=0, adler=0)


async def test_hosts_take_turns_and_one_body_at_a_time_is_looked_into(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Who sends many waits for himself; who gives up is passed over, and frees nothing early."""
    gate, turns = _Gate(), Unpacking()
    monkeypatch.setattr(unpacking, "content_of", gate.content_of)
    large = [bytes([n]) * 5_000 for n in range(7)]
    hosts = ["many", "many", "many", "other", "many", "third", "third"]
    asks = [
        asyncio.ensure_future(turns.content_of(body, host))
        for body, host in zip(large, hosts, strict=True)
    ]
    await eventually(lambda: len(gate.begun) == 1)

    asks[0].cancel()  # while its body is looked into
    asks[5].cancel()  # while it waits
    await asyncio.wait(asks[:1])
    assert gate.begun == large[:1]
    for count in range(1, 6):
        gate.open.release()
        await eventually(lambda count=count: len(gate.begun) == min(count + 1, 6))  # type: ignore[misc]
    gate.open.release()
    await asyncio.gather(*asks, return_exceptions=True)

    assert gate.begun == [large[n] for n in (0, 1, 3, 6, 2, 4)]


@pytest.mark.found
async def test_of_too_many_that_wait_the_oldest_of_who_has_most_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """6,000 that waited held 150 MiB. Who reads, or sends a stream of batches, is not refused."""
    gate, turns = _Gate(), Unpacking(max_waiting=3)
    monkeypatch.setattr(unpacking, "content_of", gate.content_of)
    hosts = ["many", "many", "many", "other", "many"]
    asks = [
        asyncio.ensure_future(turns.check([bytes([n]) * 5_000], host))
        for n, host in enumerate(hosts)
    ]
    streams = [
        asyncio.ensure_future(turns.check([b"s" * 5_000], "many", may_refuse=False)) for _ in "12"
    ]
    await eventually(asks[1].done)

    with pytest.raises(Rejected) as refused:
        await asks[1]
    assert refused.value.code == Code.TOO_MANY_REQUESTS
    for _ in range(6):
        gate.open.release()
    await asyncio.gather(*asks[2:], *streams, asks[0])
