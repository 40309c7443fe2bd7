"""The error table: every error has its codes, and comes out of a call as what it went in."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import grpc
import grpc.aio
import pytest

from dledger import errors
from dledger.client import error_of
from dledger.errors import DledgerError
from dledger.rpc.channel import outcome_of
from dledger.rpc.error_table import TABLE
from dledger.rpc.status import Code, Rejected, abort, code_of, from_rpc, status_of
from dledger.types import NodeId

_ERRORS: list[DledgerError] = [
    errors.Refused("no"),
    errors.InvalidArgument("field x"),
    errors.IllegalKey("t", "row 0 has 2"),
    errors.SeveralQueues("keys of several queues", queues=3),
    errors.FilterInUse.of("a = 1"),
    errors.UnknownTopic("t"),
    errors.AlreadyBootstrapped("id"),
    errors.Unavailable("later"),
    errors.NotLeader(NodeId("id-1")),
    errors.NotLeader(None),
    errors.NotJoined(),
    errors.Overloaded("full"),
    errors.RateLimited("100 topics at once"),
    errors.UnknownGroup("g"),
    errors.TopicMadeAnew("t"),
    errors.LimitReached("there are 10000 groups already"),
    errors.DiskFull("0 bytes"),
    errors.FeatureNotReady("not yet"),
    errors.OutcomeUnknown("perhaps"),
    errors.EntryDropped("entry 7 is not in the log any more"),
    errors.MessageIdConflict("m1 is another's", rows=[0, 7]),
]


def test_each_error_that_comes_back_as_itself_is_tried() -> None:
    restored = {kind for kind, row in TABLE.items() if row.restore is not None}

    assert restored == {type(error) for error in _ERRORS}


def _name(error: DledgerError) -> str:
    return f"{type(error).__name__} {error}"


async def _raised_by(error: DledgerError, run: Callable[[grpc.aio.AioRpcError], Any]) -> Any:
    async def fail(request: bytes, context: Any) -> bytes:
        del request
        await abort(context, error)

    server = grpc.aio.server()
    handler = grpc.unary_unary_rpc_method_handler(fail)
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("s", {"m": handler}),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            with pytest.raises(grpc.aio.AioRpcError) as raised:
                await channel.unary_unary("/s/m")(b"")
            return run(raised.value)
    finally:
        await server.stop(0)


@pytest.mark.parametrize("error", _ERRORS, ids=_name)
async def test_the_client_raises_what_the_node_meant(error: DledgerError) -> None:
    """Class and sentence survive the wire."""
    found = await _raised_by(error, lambda raised: error_of(raised, "node"))

    assert type(found) is type(error)
    assert str(error) in str(found)


@pytest.mark.parametrize(
    "error",
    [errors.StorageError("EIO"), errors.CorruptRecord("1.seg", 9, "rot"), errors.DledgerError("?")],
    ids=_name,
)
async def test_a_node_at_fault_refuses_nothing(error: DledgerError) -> None:
    """Its disk or a bug says nothing of the request: a spool must not drop a message for it."""
    meant = await _raised_by(error, lambda raised: error_of(raised, "node"))
    outcome = await _raised_by(error, lambda raised: outcome_of(raised, "node"))

    assert type(meant) is DledgerError
    assert type(outcome) is DledgerError


@pytest.mark.parametrize("error", _ERRORS, ids=_name)
async def test_a_follower_waits_out_only_what_may_pass(error: DledgerError) -> None:
    """Unavailable and its kin; the rest is the leader's answer."""
    found = await _raised_by(error, from_rpc)

    assert isinstance(found, errors.Unavailable) == isinstance(error, errors.Unavailable)
    assert isinstance(found, errors.Overloaded) == isinstance(error, errors.Overloaded)


def _leaves(cls: type[DledgerError]) -> list[type[DledgerError]]:
    return [cls, *(leaf for sub in cls.__subclasses__() for leaf in _leaves(sub))]


def test_only_real_overload_is_too_many_requests() -> None:
    """That code makes SDKs give up at once."""
    codes = {
        cls.__name__
        for cls in _leaves(DledgerError)
        if cls is not Rejected and code_of(cls.__new__(cls)) == Code.TOO_MANY_REQUESTS
    }

    assert codes == {"Overloaded", "RateLimited"}


def test_an_error_of_the_protocol_keeps_its_own_code() -> None:
    """And its sentence."""
    status = status_of(Rejected(Code.ILLEGAL_TOPIC, "topic 'a b'"))

    assert (status.code, status.message) == (Code.ILLEGAL_TOPIC, "topic 'a b'")


async def test_a_corrupt_record_names_segment_and_byte_apart_from_its_sentence() -> None:
    """So that nobody has to take the sentence apart; what metadata cannot hold is replaced."""
    error = errors.CorruptRecord("1.seg", 4096, "cannot be read: “EIO”\n" + "x" * 9000)

    metadata = await _raised_by(error, lambda raised: dict(tuple(raised.trailing_metadata())))

    argument = metadata["dledger-error-argument"]
    assert argument.startswith("1.seg 4096 cannot be read: ?EIO??x")
    assert len(argument) == 2048
