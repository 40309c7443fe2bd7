"""What a tenant's node may answer the operator of all: bounded in time and size, and told.

The answers come over real gRPC from a server that says whatever the test gives it.
"""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from typing import Any

import grpc
import grpc.aio
import pytest

from dledger.client import AdminClient, Client
from dledger.client.admin_client import ADMIN_ANSWER_BYTES
from dledger.common.status import MOST_MEMBERS
from dledger.errors import DledgerError
from dledger.rpc.pb import dledger_pb2 as pb
from dledger_operator.api import names
from dledger_operator.cluster.nodes import LONGEST_TEXT, TOPICS_BYTES, Nodes
from dledger_operator.decisions.facts import facts_of
from dledger_operator.observed.observed import Observed, Pod
from dledger_operator.status.status import status
from tests.operator.samples import NOW, bootstrapped, converged

pytestmark = pytest.mark.found

MIB = 1 << 20
MEMBERS = pb.StatusResponse.DESCRIPTOR.fields_by_name["members"].number
TOPICS = pb.ListTopicsResponse.DESCRIPTOR.fields_by_name["topics"].number


class Answers(grpc.GenericRpcHandler):  # type: ignore[misc]  # gRPC has no types
    """Answers every call with the same bytes, or with what it sends for ever."""

    raw: bytes = b""
    gzip: bool = False

    def service(self, details: Any) -> Any:
        """See `grpc.GenericRpcHandler`."""
        return grpc.unary_unary_rpc_method_handler(self._answer)

    async def _answer(self, request: bytes, context: Any) -> bytes:
        if self.gzip:
            context.set_compression(grpc.Compression.Gzip)
        return self.raw


@pytest.fixture
async def answers(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Answers]:
    """A server at the peer port of the pod `orders-0`."""
    handler = Answers()
    options = (("grpc.max_send_message_length", -1),)
    server = grpc.aio.server(handlers=(handler,), options=options)
    monkeypatch.setattr(names, "PEER_PORT", server.add_insecure_port("127.0.0.1:0"))
    await server.start()
    yield handler
    await server.stop(None)


def _said(**changes: Any) -> pb.StatusResponse:
    honest: dict[str, Any] = {
        "node_id": "id-0",
        "name": "orders-0",
        "group": "orders",
        "group_id": "g",
        "role": "leader",
        "leader_id": "id-0",
        "term": 1,
        "ready": True,
    }
    return pb.StatusResponse(**{**honest, **changes})


def _empties(number: int, count: int) -> bytes:
    """Return *count* empty elements of a repeated field: two bytes each."""
    return bytes([number << 3 | 2, 0]) * count


async def _look() -> tuple[Observed, str]:
    """Return what is seen of the pod, and why it is not believed."""
    nodes = Nodes("orders")
    pod = Pod(name="orders-0", ip="127.0.0.1", ready=True)
    views = await nodes.poll({"orders-0": pod})
    lies = nodes.disbelieved
    await nodes.close()
    of = bootstrapped()
    seen = replace(converged(of), pods={"orders-0": pod}, nodes=views, disbelieved=lies)
    return seen, lies.get("orders-0", "")


def _degraded(seen: Observed) -> tuple[str, str]:
    rows = status(facts_of(bootstrapped(), seen), now=NOW)["conditions"]
    row = next(row for row in rows if row["type"] == "Degraded")
    return row["reason"], row["message"]


HOSTILE: list[tuple[str, bytes, str]] = [
    ("4 MiB", _empties(MEMBERS, 2 * MIB), "larger than max"),
    ("256 KiB", _empties(MEMBERS, 120 << 10), f"names {120 << 10} members"),
    (
        "one member too many",
        _empties(MEMBERS, MOST_MEMBERS + 1),
        f"names {MOST_MEMBERS + 1} members",
    ),
    ("twice", _empties(MEMBERS, 2), "names a member twice"),
    ("no message", b"\n\xff", "its response cannot be parsed"),
    ("an id that expands", _said(group_id="$(AWS_SECRET_ACCESS_KEY)").SerializeToString(), "id"),
]


@pytest.mark.parametrize(("what", "raw", "why"), HOSTILE, ids=[row[0] for row in HOSTILE])
async def test_an_answer_that_no_node_gives_is_a_condition(
    answers: Answers, what: str, raw: bytes, why: str
) -> None:
    """Found: K4. Two million members cost 675 MiB and 37 s of the loop of all groups."""
    answers.raw = raw if raw.startswith(b"\n") else _said().SerializeToString() + raw

    seen, told = await _look()

    assert not seen.nodes
    assert why in told
    reason, message = _degraded(seen)
    assert reason == "StatusNotBelieved"
    assert message.startswith("orders-0: ")


@pytest.mark.parametrize("mib", [1, 64])
async def test_compression_is_no_lever(answers: Answers, mib: int) -> None:
    """Found: K4. 64 MiB are 64 KiB on the way."""
    answers.gzip = True
    answers.raw = _said().SerializeToString() + _empties(MEMBERS, mib * MIB >> 1)

    seen, told = await _look()

    assert not seen.nodes
    assert told


async def test_an_answer_within_bounds_is_believed(answers: Answers) -> None:
    """As many members as are believed, each text at its longest."""
    text = "x" * (LONGEST_TEXT - 3)
    members = [
        pb.MemberStatus(
            member=pb.Member(id=f"{n:03}{text}", name=f"{n:03}{text}", address=text), role=text
        )
        for n in range(MOST_MEMBERS - 10)
    ]
    answers.raw = _said(members=members, not_ready_reason=text).SerializeToString()

    seen, told = await _look()

    assert (told, len(seen.nodes["orders-0"].members)) == ("", MOST_MEMBERS - 10)
    assert len(answers.raw) < ADMIN_ANSWER_BYTES


async def test_texts_are_cut_and_numbers_fit_a_status(answers: Answers) -> None:
    """The API server would refuse the whole status for one that does not."""
    long, most = "x" * 5000, (1 << 63) - 1
    failover = pb.Failover(from_id=long, cause=long, term=most, at_ms=most, detected_ms=-most)
    answers.raw = _said(
        role="leader",
        not_ready_reason=long,
        writes_refused_reason=long,
        term=most,
        commit_index=-1,
        storage_used_bytes=most,
        storage_capacity_bytes=1,
        last_failover=failover,
    ).SerializeToString()

    seen, told = await _look()

    view = seen.nodes["orders-0"]
    written = status(facts_of(bootstrapped(), seen), now=NOW)
    assert told == ""
    assert len(view.not_ready_reason) == len(view.writes_refused_reason) == LONGEST_TEXT
    assert view.commit_index == 0
    assert written["lastFailover"]["at"] == "9999-12-31T23:59:59Z"
    assert all(abs(number) < 1 << 63 for number in _numbers(written))


def _numbers(value: Any) -> list[int]:
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list):
        return [number for item in value for number in _numbers(item)]
    return [value] if isinstance(value, int) else []


def _odd_text(rng: random.Random) -> str:
    odd = ["", "leader", "orders-0", "id-0", "\n", "é" * 600, "$(X)", "x" * 3000, "\x00", "g"]
    return rng.choice(odd)


def _odd(message: Any, rng: random.Random, depth: int = 0) -> Any:
    """Fill a message with odd values."""
    for field in message.DESCRIPTOR.fields:
        if rng.random() < 0.3:
            continue
        made: dict[int, Callable[[], Any]] = {
            field.CPPTYPE_STRING: lambda: _odd_text(rng),
            field.CPPTYPE_BOOL: lambda: rng.random() < 0.5,
            field.CPPTYPE_INT64: lambda: rng.choice([0, 1, -1, (1 << 63) - 1, -(1 << 63), 1 << 62]),
            field.CPPTYPE_INT32: lambda: rng.choice([0, 1, -1, (1 << 31) - 1, -(1 << 31)]),
        }
        if field.cpp_type in made:
            setattr(message, field.name, made[field.cpp_type]())
        elif field.is_repeated:
            for _ in range(rng.choice([0, 1, 3])):
                _odd(getattr(message, field.name).add(), rng, depth + 1)
        else:
            _odd(getattr(message, field.name), rng, depth + 1)
    return message


async def test_whatever_a_node_says_a_status_comes_of_it(answers: Answers) -> None:
    """Nothing is raised, and every number fits; 300 odd answers, by seed."""
    for seed in range(300):
        said = _odd(pb.StatusResponse(), random.Random(seed))
        said.group, said.name = "orders", "orders-0"
        answers.raw = said.SerializeToString()

        seen, _ = await _look()

        written = status(facts_of(bootstrapped(), seen), now=NOW)
        assert all(abs(number) < 1 << 63 for number in _numbers(written)), seed
        assert all(row["storage"].get("usedPercent", 0) <= 100 for row in written["members"]), seed
        rows = [row["name"] for row in written["members"]]
        assert len(set(rows)) == len(rows), seed


async def test_a_list_of_topics_is_bounded_too(answers: Answers) -> None:
    """It is asked of the client port of the same node."""
    for count in (TOPICS_BYTES, 20_000):
        answers.raw = _empties(TOPICS, count)
        address = f"127.0.0.1:{names.PEER_PORT}"
        async with Client(address, timeout_s=5, max_answer_bytes=TOPICS_BYTES) as client:
            with pytest.raises(DledgerError, match=r"larger than max|names 20000 topics"):
                await client.topics()


async def test_the_command_line_takes_no_more_members_either(answers: Answers) -> None:
    """It asks nodes through the same client."""
    answers.raw = _empties(MEMBERS, 100 << 10)

    async with AdminClient(f"127.0.0.1:{names.PEER_PORT}") as client:
        with pytest.raises(DledgerError, match="a group has at most 64"):
            await client.status()
