"""What becomes of a request: the table of `calls.pipeline`, row by row, with no node behind it."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import pytest

from dledger.calls.admission import AdmissionControl
from dledger.calls.caller import FORWARDED_KEY, Caller
from dledger.calls.method import Backend, Ended, Method, Submitted
from dledger.calls.pipeline import Pipeline
from dledger.calls.rules import Ask, Asked, Leave, Rule
from dledger.door.contract import Arrival, AwaitedStream, Code, Fail, Failed, Headers, Pairs
from dledger.errors import (
    DledgerError,
    InvalidArgument,
    LeadershipLost,
    NotLeader,
    Unavailable,
    Unsupported,
)
from dledger.rpc.error_table import ERROR_KEY

PEER = "ipv4:192.0.2.1:7"
FORWARDED = ((FORWARDED_KEY.encode(), b"plain"),)


class Said:
    """A response of a text."""

    def __init__(self, text: str, code: str = "OK") -> None:
        self.text, self.code = text, code

    def SerializeToString(self) -> bytes:  # noqa: N802 - protobuf's name
        return self.text.encode()


def refusal(error: DledgerError) -> Said:
    return Said(f"no: {error}", type(error).__name__)


class Behind:
    """A backend that a test fills, and what a method of it does.

    Attributes:
        leads: Whether it takes commands.
        submits: The outcomes of commands, in their order; an error that cannot be submitted at all
            is given as a class.
        serves: What a coroutine serves, in its order.
        counted: The answers, by label and code.
    """

    def __init__(self, *, leads: bool = True, peer_port: bool = False) -> None:
        self.leads = leads
        self.submits: list[Any] = []
        self.serves: list[Any] = []
        self.passed_on: list[tuple[bytes, Callable[[Any], None]]] = []
        self.counted: list[tuple[str, str, int]] = []
        self.noted = 0
        self.admission = AdmissionControl()
        backend = Backend(
            group="g",
            leads=lambda: self.leads,
            forward=self._forward,
            ask=self._ask,
            retry=self._retry,
            count=lambda *answer: self.counted.append(answer),
            note=self._note,
        )
        self.rules: list[Rule] = []
        self.pipeline = Pipeline(
            backend, self.admission, self.rules, tls=False, peer_port=peer_port
        )

    def method(self, **ways: Any) -> Method[str, Said]:
        ways = {"refuse": refusal} | ways
        return Method(
            path="/p.S/Say",
            label="S/Say",
            parse=bytes.decode,
            code=lambda response: response.code,
            serve=self._serve,
            submit=self._submit,
            **ways,
        )

    def _note(self, _: Caller, calls: int) -> None:
        self.noted += calls

    def _submit(self, request: str, _: Caller) -> Submitted[Said] | None:
        outcome = self.submits.pop(0)
        if isinstance(outcome, type):
            raise outcome(request)
        if outcome is None:
            return None
        result = asyncio.get_running_loop().create_future()
        if isinstance(outcome, Exception):
            result.set_exception(outcome)
        elif outcome != "open":
            result.set_result(outcome)
        self.result = result
        return Submitted(result, lambda said: Said(said) if said != "look" else None)

    async def _serve(self, request: str, _: Caller) -> Said:
        outcome = self.serves.pop(0)
        if isinstance(outcome, Exception):
            raise outcome
        return Said(f"{outcome} {request}")

    def _forward(self, path: str, raw: bytes, _: Caller, settle: Callable[[Any], None]) -> Any:
        if path != "/p.S/Say":
            raise AssertionError(path)
        self.passed_on.append((raw, settle))
        return lambda: settle

    async def _ask(self, _: str, raw: bytes, __: Caller) -> bytes:
        return b"leader: " + raw

    async def _retry(self, _: Caller, __: int, attempt: Callable[[], Awaitable[bytes]]) -> bytes:
        """Try twice."""
        try:
            return await attempt()
        except Unavailable:
            return await attempt()

    async def asked(self, method: Method[str, Said], pairs: Pairs = ()) -> Any:
        """Return the answer, or how the call ended."""
        ended = asyncio.get_running_loop().create_future()
        self.pipeline.begin(method, headers(pairs), b"a", ended.set_result, _failing(ended))
        outcome = await ended
        assert (self.admission.taken, self.admission._connections) == (0, {})
        return outcome


def headers(pairs: Pairs = ()) -> Headers:
    return Headers(pairs, dict(pairs), peer=PEER, connection=0, deadline_s=None)


def _failing(ended: asyncio.Future[Any]) -> Fail:
    def fail(code: Code, message: str, trailers: Pairs = ()) -> None:
        ended.set_result((code, message, dict(trailers).get(ERROR_KEY.encode())))

    return fail


async def test_an_applied_command_is_answered_at_once() -> None:
    behind = Behind()
    behind.submits = ["done"]

    assert await behind.asked(behind.method()) == b"done"
    assert behind.counted == [("S/Say", "OK", 1)]
    assert behind.noted == 1


@pytest.mark.parametrize("begun", [None, "look", LeadershipLost("lost"), NotLeader])
async def test_what_a_command_cannot_answer_is_served_and_counted_once(begun: Any) -> None:
    """It cannot be submitted now; its result has to be looked at; its outcome is unknown."""
    behind = Behind()
    behind.submits, behind.serves = [begun], ["served"]

    assert await behind.asked(behind.method()) == b"served a"
    assert behind.counted == [("S/Say", "OK", 1)]


async def test_what_waits_anyway_is_parsed_once() -> None:
    """As a replay of thousands of messages: nobody parses and checks it for a command in vain."""
    behind, parsed = Behind(), list[bytes]()

    def parse(raw: bytes) -> str:
        parsed.append(raw)
        return raw.decode()

    method = replace(behind.method(served_with=b"x-many"), parse=parse)
    behind.serves = ["served"]

    assert await behind.asked(method, ((b"x-many", b""),)) == b"served a"
    assert parsed == [b"a"]


@pytest.mark.parametrize("at", ["submitted", "applied", "served"])
@pytest.mark.parametrize("peer_port", [False, True], ids=["client", "follower"])
async def test_a_refusal_is_the_methods_response(at: str, *, peer_port: bool) -> None:
    """To a follower as to a client; a status if the method has none, which the follower counts."""
    behind, error = Behind(peer_port=peer_port), InvalidArgument("bad")
    first: dict[str, Any] = {"submitted": InvalidArgument, "applied": error, "served": None}
    behind.submits = [first[at]] * 2
    behind.serves = [error, error]
    said = "a" if at == "submitted" else "bad"

    assert await behind.asked(behind.method()) == f"no: {said}".encode()
    status = await behind.asked(behind.method(refuse=None))
    assert status == (Code.INVALID_ARGUMENT, said, b"InvalidArgument")
    by_status = [] if peer_port else [("S/Say", "INVALID_ARGUMENT", 1)]
    assert behind.counted == [("S/Say", "InvalidArgument", 1), *by_status]


async def test_a_follower_gets_a_status_for_what_it_may_try_again() -> None:
    """A client gets the response instead, when its time is over."""
    for peer_port, told in ((False, b"no: "), (True, None)):
        behind = Behind(peer_port=peer_port)
        behind.submits, behind.serves = [None], [LeadershipLost("x"), LeadershipLost("x")]
        outcome = await behind.asked(behind.method(), FORWARDED if peer_port else ())
        if told is not None:
            assert outcome.startswith(told)
        else:
            assert outcome[0] is Code.UNAVAILABLE
            assert behind.counted == []


async def test_a_bug_is_told_without_its_details(caplog: pytest.LogCaptureFixture) -> None:
    behind = Behind()
    behind.submits = [ZeroDivisionError("secret")]

    assert b"secret" not in await behind.asked(behind.method())
    assert "S/Say failed" in caplog.text


async def test_who_does_not_lead_passes_the_bytes_on() -> None:
    """What the leader answers is not counted here; what it cannot answer is tried again."""
    behind = Behind(leads=False)
    for outcome, told in ((b"from there", b"from there"), (NotLeader(None), b"leader: a")):
        asked = asyncio.ensure_future(behind.asked(behind.method()))
        await asyncio.sleep(0)
        raw, settle = behind.passed_on.pop()
        settle(outcome)
        assert (raw, await asked) == (b"a", told)
    assert behind.counted == []
    assert behind.noted == 0


async def test_who_does_not_lead_may_know_the_answer() -> None:
    behind = Behind(leads=False)
    behind.serves = ["here"]

    assert await behind.asked(behind.method(here=lambda _: True)) == b"here a"
    assert await behind.asked(behind.method(here=lambda _: False)) == b"leader: a"


async def test_a_call_that_is_given_up_answers_nothing() -> None:
    """Its command is cancelled, where it can be, and its room is free."""
    behind, answers = Behind(), list[bytes]()
    behind.submits = ["open"]
    fail = _failing(asyncio.get_running_loop().create_future())
    cancel = behind.pipeline.begin(behind.method(), headers(), b"a", answers.append, fail)
    assert behind.admission.taken
    cancel()
    await asyncio.sleep(0)

    assert behind.result.cancelled()
    assert (answers, behind.counted, behind.admission.taken) == ([], [], 0)


async def test_what_is_never_served_is_not_read() -> None:
    behind, reads = Behind(), itertools.count()

    async def read() -> bytes:
        next(reads)
        return b"a"

    never = behind.method(never=Unsupported("later"))
    assert await behind.pipeline.unread(never, headers(), read) == b"no: later"
    assert next(reads) == 0
    behind.submits, behind.serves = [], ["read"]
    assert await behind.pipeline.unread(behind.method(), headers(), read) == b"read a"


class Stream(AwaitedStream):
    """The two directions of a call, without messages of the client."""

    def __init__(self) -> None:
        self.sent: list[bytes] = []

    async def read(self) -> bytes | None:
        return None

    async def __aiter__(self) -> Any:
        yield await self.read()

    async def send(self, message: bytes) -> None:
        self.sent.append(message)

    def send_now(self, message: bytes) -> None:
        self.sent.append(message)

    def prove(self, arrival: Arrival) -> None:
        arrival.proved()


@pytest.mark.parametrize(
    ("raises", "sent", "ends"),
    [
        (None, [b"1"], None),
        (InvalidArgument("bad"), [b"1", b"no: bad"], None),
        (Ended(InvalidArgument("bad"), (("more", "so"),)), [b"1"], Code.INVALID_ARGUMENT),
        (Failed(Code.CANCELLED, "gone"), [b"1"], Code.CANCELLED),
    ],
    ids=["well", "refused", "by a status", "gone"],
)
async def test_a_stream_ends_as_its_handler_does(
    raises: Exception | None, sent: list[bytes], ends: Code | None
) -> None:
    behind, stream = Behind(), Stream()

    async def serve(_: Caller, stream: Any) -> None:
        await stream.send(b"1")
        if raises is not None:
            raise raises

    opened = behind.pipeline.open(behind.method(stream=serve), headers(), stream)
    if ends is None:
        await opened
    else:
        with pytest.raises(Failed) as failed:
            await opened
        assert failed.value.code is ends
        assert (dict(failed.value.trailers).get(b"more") == b"so") is isinstance(raises, Ended)
    assert stream.sent == sent


class _Rest:
    """What a handler left of a call; *serves*: what it does then."""

    reads = True

    def __init__(self, serves: Callable[[], Awaitable[Any]]) -> None:
        self.serves, self.told = serves, list[str]()

    def wait(self) -> None:
        self.told.append("waits")

    def drop(self) -> None:
        self.told.append("dropped")

    async def serve(self) -> Any:
        self.told.append("serves")
        return await self.serves()


class _Shares:
    """A rule that counts what is under way."""

    def __init__(self) -> None:
        self.out, self.refusals = 0, 0

    def admit(self, ask: Ask) -> Leave:
        del ask
        self.out += 1
        return self._leave

    def _leave(self) -> None:
        self.out -= 1

    def refused(self, ask: Ask, error: DledgerError) -> None:
        del ask, error
        self.refusals += 1


@pytest.mark.parametrize("ends", ["well", "refused", "dropped"])
async def test_what_a_handler_left_is_asked_and_answered_as_its_call(ends: str) -> None:
    """It keeps its share of a rule while it waits, and what it raises is refused as ever."""
    behind, stream, rule = Behind(), Stream(), _Shares()
    behind.rules.append(rule)

    async def go_on() -> Any:
        if ends == "refused":
            raise InvalidArgument("bad")
        return left if left.told.count("serves") < 2 else None

    left = _Rest(go_on)

    async def serve(_: Caller, __: Any) -> Any:
        return left

    rest = await behind.pipeline.open(behind.method(stream=serve), headers(), stream)
    assert rest is not None
    rest.wait()
    assert (rest.reads, rule.out, left.told) == (True, 1, ["waits"])

    if ends == "dropped":
        rest.drop()
        assert left.told == ["waits", "dropped"]
    elif ends == "refused":
        assert await rest.serve() is None
        assert stream.sent == [b"no: bad"]
    else:
        assert await rest.serve() is rest
        assert rule.out == 1
        assert await rest.serve() is None
    assert (rule.out, rule.refusals) == (0, int(ends == "refused"))


class Batch:
    """Two calls that came as one command."""

    calls, messages, size_bytes = 2, 0, 10
    asked: Asked | None = None

    def __init__(self, behind: Behind) -> None:
        self._behind = behind
        self.method = behind.method()
        self.caller = Caller.of(headers(), tls=False, peer_port=False)
        self.told: list[Any] = []

    def submit(self) -> asyncio.Future[Any] | None:
        begun = self._behind._submit("a", self.caller)
        return begun.result if begun is not None else None

    def settle(self, result: Any) -> None:
        if result == "bug":
            raise ZeroDivisionError
        self.told.append(result)

    def refuse(self, error: Exception) -> None:
        self.told.append(type(error))

    def resume(self, tried: DledgerError | None) -> None:
        self.told.append(("back", tried and type(tried)))


@pytest.mark.parametrize(
    ("outcome", "told"),
    [
        ("done", "done"),
        (InvalidArgument("bad"), InvalidArgument),
        ("bug", ZeroDivisionError),
        (None, ("back", None)),
        (NotLeader, ("back", None)),
        (LeadershipLost("lost"), ("back", LeadershipLost)),
    ],
)
async def test_a_batch_is_another_kind_of_work(outcome: Any, told: Any) -> None:
    behind = Behind()
    behind.submits, batch = [outcome], Batch(behind)
    behind.pipeline.batch(batch)
    await asyncio.sleep(0)

    assert batch.told == [told]
    assert (behind.noted, behind.admission.taken) == (2, 0)


async def test_a_batch_goes_back_if_this_node_does_not_lead() -> None:
    behind = Behind(leads=False)
    batch = Batch(behind)
    behind.pipeline.batch(batch)

    assert (batch.told, behind.noted) == ([("back", None)], 0)
