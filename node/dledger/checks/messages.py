"""Checks of messages, for every service that accepts them; each rule has its RocketMQ code.

Clients check with `check_record` before they send; the services check again. What the type of a
topic asks of a message is in `broker.topics`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from hashlib import md5, sha1
from typing import Any, Final
from zlib import crc32

from dledger.common.limits import (
    MAX_BODY_BYTES,
    MAX_GROUP_LENGTH,
    MAX_ID_LENGTH,
    MAX_MESSAGES,
    MAX_PROPERTIES,
    MAX_PROPERTIES_BYTES,
    MAX_REQUEST_BYTES,
)
from dledger.errors import InvalidArgument
from dledger.rpc.rocketmq_stubs import definition
from dledger.rpc.status import Code, Rejected
from dledger.types import MAX_PRIORITY, NO_PRIORITY, Record, Typed

_DIGEST = definition.DigestType
_NO_DIGEST, _CRC32, _MD5, _SHA1 = (
    _DIGEST.DIGEST_TYPE_UNSPECIFIED,
    _DIGEST.CRC32,
    _DIGEST.MD5,
    _DIGEST.SHA1,
)
MAX_TIMESTAMP_MS: Final = 253_402_300_799_999
"""The last millisecond of the year 9999, the maximum of a protobuf ``Timestamp``."""


def check_body(body: bytes) -> None:
    """Refuse an empty body and one of more than 4 MiB."""
    if not 0 < len(body) <= MAX_BODY_BYTES:
        check_body_sizes(len(body), len(body))


def check_body_sizes(smallest: int, largest: int) -> None:
    """Refuse bodies of which the smallest is empty or the largest has more than 4 MiB."""
    if smallest == 0:
        raise Rejected(Code.MESSAGE_BODY_EMPTY, "the message body is empty")
    if largest > MAX_BODY_BYTES:
        raise Rejected(
            Code.MESSAGE_BODY_TOO_LARGE,
            f"the message body has {largest} bytes; the limit is {MAX_BODY_BYTES}",
        )


def check_total(size_bytes: int) -> None:
    """Refuse a batch that would make its Raft entry too large."""
    if size_bytes > MAX_REQUEST_BYTES:
        raise Rejected(
            Code.PAYLOAD_TOO_LARGE,
            f"the bodies of one request have {size_bytes} bytes; the limit is {MAX_REQUEST_BYTES}",
        )


def check_digest(body: bytes, digest: definition.Digest) -> None:
    """Refuse a body that does not match the digest that its producer sent, if any."""
    kind = digest.type
    if kind == _NO_DIGEST:
        return
    given = digest.checksum
    if kind == _MD5:
        correct = given.upper() == md5_of(body)
    elif kind == _SHA1:
        correct = given.upper() == sha1(body, usedforsecurity=False).hexdigest().upper()
    elif kind == _CRC32:
        correct = given.upper().lstrip("0") == f"{crc32(body):X}".lstrip("0")
    else:
        return
    if not correct:
        raise Rejected(
            Code.MESSAGE_CORRUPTED,
            f"the body was damaged in transit: its {_name(_DIGEST, kind)} is not {given[:64]!r}",
        )


def check_message_id(message_id: str) -> None:
    """Refuse an empty or overlong message id of a RocketMQ client."""
    if not 1 <= len(message_id) <= MAX_ID_LENGTH:
        raise Rejected(
            Code.ILLEGAL_MESSAGE_ID,
            f"a message id has 1 to {MAX_ID_LENGTH} characters, not {len(message_id)}",
        )


def check_id_size(largest: int, unit: str = "bytes") -> None:
    """Refuse ids of records of which the largest has too many of a unit; one may be empty."""
    if largest > MAX_ID_LENGTH:
        raise InvalidArgument(f"message_id has at most {MAX_ID_LENGTH} {unit}")


def check_count(count: int) -> None:
    """Refuse a batch of no records, and one of too many."""
    if not 1 <= count <= MAX_MESSAGES:
        raise InvalidArgument(f"a batch has 1 to {MAX_MESSAGES} records, not {count}")


def check_times(column: Sequence[int]) -> None:
    """Refuse timestamps that do not fit a protobuf ``Timestamp``; names the first row."""
    if not column or (min(column) >= 0 and max(column) <= MAX_TIMESTAMP_MS):
        return
    row, found = next((r, ms) for r, ms in enumerate(column) if not 0 <= ms <= MAX_TIMESTAMP_MS)
    raise InvalidArgument(
        f"row {row}: born_at_ms must be from 0 to {MAX_TIMESTAMP_MS} (the year 9999), not {found}"
    )


def check_typed(typed: Typed) -> None:
    """Refuse what no type of topic takes of a producer, and where it says that it was moved."""
    group = typed.message_group
    if len(group) > MAX_GROUP_LENGTH or not (group.isprintable() and group == group.strip()):
        raise Rejected(
            Code.ILLEGAL_MESSAGE_GROUP,
            f"message group {group[:80]!r} must be at most {MAX_GROUP_LENGTH} printable "
            "characters, without outer spaces",
        )
    if not 0 <= typed.deliver_at_ms <= MAX_TIMESTAMP_MS:
        raise Rejected(
            Code.ILLEGAL_DELIVERY_TIME,
            f"a delivery time is from 0 to {MAX_TIMESTAMP_MS} (the year 9999), in milliseconds, "
            f"not {typed.deliver_at_ms}",
        )
    if not NO_PRIORITY <= typed.priority <= MAX_PRIORITY:
        raise Rejected(
            Code.BAD_REQUEST, f"a priority is from 0 to {MAX_PRIORITY}, not {typed.priority}"
        )
    if typed.moved_from is not None:
        raise InvalidArgument(
            f"a message says that it was moved from topic {typed.moved_from.topic[:80]!r}, which "
            "only its group says of it"
        )


def md5_of(body: bytes) -> str:
    """Return the MD5 of a body in upper-case hexadecimal, the digest that every SDK checks."""
    return md5(body, usedforsecurity=False).hexdigest().upper()


def check_born_host(host: str) -> None:
    """Refuse a producer's address that is longer than a name."""
    if len(host) > MAX_ID_LENGTH:
        raise InvalidArgument(f"born_host has at most {MAX_ID_LENGTH} characters, not {len(host)}")


def check_trace(context: str) -> None:
    """Refuse a trace context that is larger than all properties may be; readers get it unasked."""
    if len(context) > MAX_PROPERTIES_BYTES:
        raise Rejected(
            Code.MESSAGE_PROPERTIES_TOO_LARGE,
            f"a trace context of {len(context)} characters; the limit is {MAX_PROPERTIES_BYTES}",
        )


def check_tag(tag: str) -> None:
    """Refuse a tag that a filter expression cannot name, and one larger than all properties."""
    if not tag:
        return
    if len(tag) > MAX_PROPERTIES_BYTES:
        raise Rejected(
            Code.ILLEGAL_MESSAGE_TAG,
            f"a tag of {len(tag)} characters; the limit is {MAX_PROPERTIES_BYTES}",
        )
    if "|" in tag or tag != tag.strip() or tag == "*" or not (tag.isprintable()):
        raise Rejected(
            Code.ILLEGAL_MESSAGE_TAG,
            f"tag {tag[:80]!r} must be printable, without '|' and outer spaces, and not '*'",
        )


def check_properties(properties: Mapping[str, str], keys: Collection[str]) -> None:
    """Refuse blank keys and names, and more properties than a message may carry."""
    if not properties and not keys:
        return
    if any(not key.strip() for key in keys):
        raise Rejected(Code.ILLEGAL_MESSAGE_KEY, "a message key is blank")
    if any(not name.strip() for name in properties):
        raise Rejected(Code.ILLEGAL_MESSAGE_PROPERTY_KEY, "the name of a property is blank")
    count = len(properties) + len(keys)
    size_bytes = sum(len(n) + len(v) for n, v in properties.items()) + sum(map(len, keys))
    if count > MAX_PROPERTIES or size_bytes > MAX_PROPERTIES_BYTES:
        raise Rejected(
            Code.MESSAGE_PROPERTIES_TOO_LARGE,
            f"{count} keys and properties of {size_bytes} characters; "
            f"the limits are {MAX_PROPERTIES} and {MAX_PROPERTIES_BYTES}",
        )


def check_record(record: Record) -> None:
    """Refuse a native message that a node would refuse, before it is sent."""
    check_body(record.body)
    check_times((record.born_at_ms,))
    _check_unicode(record)
    check_tag(record.tag)
    check_properties(record.properties, record.keys)
    if record.typed is not None:
        check_typed(record.typed)
    check_id_size(len(record.message_id.encode()))


def _check_unicode(record: Record) -> None:
    """Refuse lone surrogates, which a Python string may contain but UTF-8 cannot encode."""
    pairs = (text for pair in record.properties.items() for text in pair)
    group = "" if record.typed is None else record.typed.message_group
    texts = (record.message_id, record.tag, group)
    for text in (*texts, *record.keys, *pairs):
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise InvalidArgument(f"{text!a} is not Unicode: {error.reason}") from error


def _name(enum: Any, value: int) -> str:
    return str(enum.Name(value)) if value in enum.values() else str(value)
