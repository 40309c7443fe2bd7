"""The RocketMQ SDK with a broker that does nothing: an upper bound for any broker in Python.

It knows every topic, keeps no message, and answers each call from ready bytes. As a program it is
that broker.
"""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Final

import grpc
import uvloop

from dledger.broker.redelivery import DEFAULT
from dledger.broker.topics import NORMAL, Topic
from dledger.calls.admission import AdmissionControl
from dledger.calls.caller import Caller
from dledger.requests.outflow import Outflow
from dledger.rocketmq.routes import message_queues
from dledger.rocketmq.telemetry import Subscribed, Telemetry
from dledger.rpc.rocketmq_stubs import SERVICE_NAME, definition, service
from dledger.rpc.status import ok
from e2e.bench.bare_server import bare_server, serve
from e2e.bench.cases import Case
from e2e.bench.engine import usage_figures
from e2e.bench.loads import Load
from e2e.bench.rows import Row
from e2e.bench.sdk import ALONE, ASYNC, SDK, SdkCalls, sdk_client
from e2e.harness.ports import HOST
from e2e.harness.processes import ChildProcess

BARE: Final = "bare broker"
_QUEUES: Final = 8
_SETTLE_S: Final = 1.0


def bare_broker_rows(seconds: float, log: Path) -> list[Row]:
    """Measure the SDK's sends where nothing becomes of them."""
    with (
        bare_server("e2e.bench.bare_broker", log) as (broker, port),
        sdk_client([f"{HOST}:{port}"], log) as load,
    ):
        return [_row(broker, load, seconds, step) for step in (ALONE, ASYNC)]


def _row(broker: ChildProcess, load: Load, seconds: float, step: SdkCalls) -> Row:
    case = Case(batch=1, window=step.window)
    load.run(case, _SETTLE_S, mode=step.mode)
    before = (broker.usage(), load.child.usage())
    figures = load.run(case, seconds, mode=step.mode).figures(case.batch)
    after = (broker.usage(), load.child.usage())
    return Row(
        kind=SDK,
        system=BARE,
        name=f"1 KiB, {step.name}",
        size_bytes=case.size_bytes,
        window=case.window,
        figures=figures | {"seconds": seconds} | usage_figures(before, after),
        samples=(figures["per_s"],),
    )


def _handler(port: int) -> grpc.GenericRpcHandler:
    unary = {
        "QueryRoute": lambda request: _route(request, port),
        "SendMessage": _always(
            service.SendMessageResponse(status=ok(), entries=[_entry()]),
        ),
        "Heartbeat": _always(service.HeartbeatResponse(status=ok())),
        "NotifyClientTermination": _always(service.NotifyClientTerminationResponse(status=ok())),
    }
    handlers = {
        name: grpc.unary_unary_rpc_method_handler(_served(answer)) for name, answer in unary.items()
    }
    handlers["Telemetry"] = grpc.stream_stream_rpc_method_handler(
        Telemetry(AdmissionControl(), Outflow(), lambda *_: Subscribed(DEFAULT), _nothing).serve
    )
    return grpc.method_handlers_generic_handler(SERVICE_NAME, handlers)


async def _nothing(caller: Caller) -> None:
    """Wait for no state: there is none."""
    del caller


def _served(answer: Callable[[bytes], bytes]) -> Callable[[bytes, Any], Awaitable[bytes]]:
    async def serve_one(request: bytes, _: Any) -> bytes:
        return answer(request)

    return serve_one


def _always(response: Any) -> Callable[[bytes], bytes]:
    ready = bytes(response.SerializeToString())
    return lambda _: ready


def _entry() -> Any:
    return service.SendResultEntry(status=ok(), message_id="bare", offset=0)


def _route(raw: bytes, port: int) -> bytes:
    resource = service.QueryRouteRequest.FromString(raw).topic
    address = definition.Address(host=HOST, port=port)
    topic = Topic(name=resource.name, type=NORMAL.name, queues=_QUEUES)
    queues = message_queues(topic, resource, [(BARE, [address])])
    response = service.QueryRouteResponse(status=ok(), message_queues=queues)
    return bytes(response.SerializeToString())


if __name__ == "__main__":
    sys.exit(uvloop.run(serve(_handler)))
