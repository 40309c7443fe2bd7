"""What was heard, as text that a reader understands and that lets no byte be changed."""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from typing import Any
from urllib.parse import unquote

import grpc
import ngh2
from google.protobuf import text_format
from google.protobuf.message import DecodeError

from dledger.rpc.pb import dledger_pb2 as pb
from dledger.rpc.rocketmq_stubs import SERVICE_NAME, service
from tests.refusals.wire import Heard, Pairs

_PREFIX = struct.Struct(">BI")
_CODES = {code.value[0]: code.name for code in grpc.StatusCode}
_USUAL = {
    (b":status", b"200"),
    (b"content-type", b"application/grpc"),
    (b"grpc-accept-encoding", b"identity"),
    (b"accept-encoding", b"identity"),
    (b"grpc-accept-encoding", b"identity, deflate, gzip"),
    (b"accept-encoding", b"identity, gzip"),
}
"""Fields before the messages that say nothing of a call."""
_ENDS = (b"grpc-status", b"grpc-message")
_VOLATILE = {
    re.compile(r"127\.0\.0\.1:\d+"): "127.0.0.1:PORT",
    re.compile(r'host: "127\.0\.0\.1" port: \d+'): 'host: "127.0.0.1" port: PORT',
    re.compile(r"delivery_timestamp { seconds: \d+( nanos: \d+)? }"): "delivery_timestamp { NOW }",
    re.compile(r"\b(Deadline Exceeded|no answer in time)\b"): "IN TIME",
}
"""Ports and times; and who says it first, the leader's end of a link or the follower's."""


def said(path: str, heard: Heard) -> str:
    """Return all that a server said to a call of *path*, without what differs each time."""
    text = "\n".join(_lines(path, heard))
    for volatile, instead in _VOLATILE.items():
        text = volatile.sub(instead, text)
    return text


def _lines(path: str, heard: Heard) -> Iterator[str]:
    fields = [*heard.headers, *heard.trailers]
    if not fields and heard.reset is None and not heard.lost:
        yield "nothing"
    yield from _messages(path, bytes(heard.data))
    for name, value in fields:
        if (name, value) not in _USUAL and name not in _ENDS:
            yield f"{name.decode()}: {value.decode('latin-1')}"
    known = dict(fields)
    if b"grpc-status" in known:
        words = unquote(known.get(b"grpc-message", b"").decode("latin-1"))
        code = _CODES[int(known[b"grpc-status"])]
        yield f"{code}: {words}" if words else code
    elif heard.reset is not None:
        yield f"reset: {ngh2.ErrorCode(heard.reset).name}"
    elif heard.lost:
        yield "the connection ended"


def _messages(path: str, data: bytes) -> Iterator[str]:
    while data:
        if len(data) < _PREFIX.size:
            yield f"torn: {data.hex()}"
            return
        flag, size = _PREFIX.unpack_from(data)
        message, data = data[_PREFIX.size : _PREFIX.size + size], data[_PREFIX.size + size :]
        yield _text(path, message) + (f" flag={flag}" if flag else "")


def _text(path: str, raw: bytes) -> str:
    """Return a message as text; with its bytes, where they are not the ones that it would have."""
    kind = _response_type(path)
    try:
        message = kind.FromString(raw) if kind is not None else None
    except DecodeError:
        message = None
    if message is None:
        return f"bytes: {raw.hex()}"
    text = text_format.MessageToString(message, as_one_line=True, print_unknown_fields=True)
    shown = f"{kind.DESCRIPTOR.name} {{ {text} }}" if text else f"{kind.DESCRIPTOR.name} {{ }}"
    same = message.SerializeToString(deterministic=True) == raw
    return shown if same else f"{shown} bytes: {raw.hex()}"


def _response_type(path: str) -> Any:
    _, owner, name = path.split("/")
    package, _, short = owner.rpartition(".")
    if owner == SERVICE_NAME:
        described = service.DESCRIPTOR.services_by_name[short]
        module: Any = service
    elif package == pb.DESCRIPTOR.package and short in pb.DESCRIPTOR.services_by_name:
        described = pb.DESCRIPTOR.services_by_name[short]
        module = pb
    else:
        return None
    method = described.methods_by_name.get(name)
    return None if method is None else getattr(module, method.output_type.name)


def metadata(**fields: str | bytes) -> Pairs:
    """Return a call's metadata; ``_`` stands for ``-``."""
    return tuple(
        (name.replace("_", "-").encode(), value if isinstance(value, bytes) else value.encode())
        for name, value in fields.items()
    )
