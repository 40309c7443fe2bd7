"""The few of RocketMQ's own calls that starting one takes: who is there, make topics and groups.

A frame is: bytes that follow (4), kind and length of the header (1 + 3; kind 0 is JSON), header,
body; numbers are big-endian. Source: RocketMQ's ``RemotingCommand``. As a program it waits until
a name server knows so many brokers, and then becomes the program that its other arguments name:
a proxy that starts before its brokers ends at once.
"""

from __future__ import annotations

import json
import os
import re
import socket
import struct
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from e2e.harness.waiting import HarnessError, eventually

_TIMEOUT_S: Final = 3.0
_WAIT_S: Final = 150.0
_POLL_S: Final = 0.3
_HEAD: Final = struct.Struct(">II")
_NUMBER_BYTES: Final = 4
_HEADER_BITS: Final = 24
_UPDATE_TOPIC: Final = 17
_UPDATE_GROUP: Final = 200
_CLUSTER_INFO: Final = 106
_READ_AND_WRITE: Final = 6
_MASTER: Final = 0


class RemotingError(Exception):
    """A call was refused; the message has what the other side said."""


@dataclass(frozen=True, slots=True)
class Brokers:
    """Who is registered at a name server.

    Attributes:
        master: Where the one is that takes messages; None while there is none.
        addresses: Of all.
    """

    master: str | None
    addresses: frozenset[str]


def encoded(code: int, fields: Mapping[str, object], body: bytes = b"") -> bytes:
    """Return the frame of a request."""
    header = {
        "code": code,
        "language": "OTHER",
        "version": 0,
        "opaque": 0,
        "flag": 0,
        "extFields": {name: str(value) for name, value in fields.items()},
        "serializeTypeCurrentRPC": "JSON",
    }
    text = json.dumps(header).encode()
    return _HEAD.pack(_NUMBER_BYTES + len(text) + len(body), len(text)) + text + body


def decoded(frame: bytes) -> tuple[dict[str, Any], bytes]:
    """Return header and body of a frame, whose first four bytes are left out already."""
    kind_and_length = int.from_bytes(frame[:_NUMBER_BYTES], "big")
    end = _NUMBER_BYTES + kind_and_length % (1 << _HEADER_BITS)
    return json.loads(frame[_NUMBER_BYTES:end]), frame[end:]


def brokers_of(body: bytes) -> Brokers:
    """Read a cluster's description, in which numbers that are keys have no quotes.

    A broker that has no number yet, between its start and an election, has -1.
    """
    told = json.loads(re.sub(rb"([{,]\s*)(-?\d+)\s*:", rb'\1"\2":', body))
    found = {
        int(number): address
        for group in told.get("brokerAddrTable", {}).values()
        for number, address in group["brokerAddrs"].items()
    }
    return Brokers(master=found.get(_MASTER), addresses=frozenset(found.values()))


def brokers(names: str) -> Brokers | None:
    """Ask the name server at *names*; None if it does not answer."""
    try:
        return brokers_of(_call(names, _CLUSTER_INFO, {}))
    except (OSError, RemotingError):
        return None


def make_topic(broker: str, topic: str, queues: int, message_type: str) -> None:
    """Make a topic of a type, or change it. Raises RemotingError and OSError."""
    fields = {
        "topic": topic,
        "defaultTopic": "TBW102",
        "readQueueNums": queues,
        "writeQueueNums": queues,
        "perm": _READ_AND_WRITE,
        "topicFilterType": "SINGLE_TAG",
        "topicSysFlag": 0,
        "order": "false",
        "attributes": f"+message.type={message_type}",
    }
    _call(broker, _UPDATE_TOPIC, fields)


def make_ordered_group(broker: str, group: str) -> None:
    """Make a consumer group that gets messages in order. Raises RemotingError and OSError."""
    settings = {"groupName": group, "consumeEnable": True, "consumeMessageOrderly": True}
    _call(broker, _UPDATE_GROUP, {}, json.dumps(settings).encode())


def _call(address: str, code: int, fields: Mapping[str, object], body: bytes = b"") -> bytes:
    host, _, port = address.rpartition(":")
    with socket.create_connection((host, int(port)), _TIMEOUT_S) as connection:
        connection.sendall(encoded(code, fields, body))
        with connection.makefile("rb") as answers:
            frame = answers.read(int.from_bytes(answers.read(_NUMBER_BYTES), "big"))
    if len(frame) <= _NUMBER_BYTES:
        raise RemotingError(f"{address}: the connection ended")
    header, answer = decoded(frame)
    if header["code"]:
        raise RemotingError(f"{address}: code {header['code']}, {header.get('remark')}")
    return answer


def main(arguments: list[str]) -> None:
    """Wait for so many brokers at a name server, then become a program."""
    names, count, *argv = arguments

    def are_there() -> bool:
        known = brokers(names)
        if known is None:
            return False
        return len(known.addresses) >= int(count) and (known.master is not None or count == "0")

    eventually(f"{count} brokers at the name server {names}", are_there, _WAIT_S, _POLL_S)
    os.execvp(argv[0], argv)  # noqa: S606 - the program that the bench names


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except HarnessError as late:
        sys.exit(str(late))
