"""A lease, and a queue's leases in a snapshot: columns, by ascending offset."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

from dledger.broker.commands import NUMBER_BOUND
from dledger.broker.snapshot_codec import Reader, ascends, column, number, text
from dledger.common.byte_order import TypeCode

_A_CHANGE: Final = 1 << 48
"""What a change adds to a receive id: there are fewer receives."""
_COLUMNS: Final[tuple[TypeCode, ...]] = ("Q", "q", "Q", "I")


class Lease(NamedTuple):
    """The lease of a delivered message; immutable, because a snapshot may share it.

    Its end, and all times here, are lived time (`lived_time`).

    Attributes:
        receive_id: The RECEIVE that delivered it last, and from bit 48 on how often its end was
            changed since; a handle of an earlier one is stale.
        visible_at_ms: When it may be delivered again.
        attempt: How often it was delivered.
        client_id: The client that it is renewed for; empty if it is not renewed.
        arrived: Whether that client is known to have the message, so that its lease is renewed for
            as long as the client is alive; without a client see `is_suspended`.
    """

    receive_id: int
    visible_at_ms: int
    attempt: int
    client_id: str
    arrived: bool = False

    @property
    def is_suspended(self) -> bool:
        """Whether its holder gave it back with word that the delivery is not to count."""
        return self.arrived and not self.client_id

    def after_change(self, *, suspended: bool) -> Lease:
        """Return the lease with its next receipt handle; the last one stays."""
        later = self.receive_id + _A_CHANGE
        receive_id = later if later < NUMBER_BOUND else self.receive_id
        return self._replace(receive_id=receive_id, arrived=suspended)

    def comes_after(self, receive_id: int) -> bool:
        """Whether a change of the lease with *receive_id* made it this one."""
        return self.receive_id - receive_id == _A_CHANGE


def encoded_leases(leases: Mapping[int, Lease]) -> Iterator[bytes]:
    """Yield the bytes of leases by offset."""
    offsets = sorted(leases)
    yield from column("Q", len(offsets), offsets)
    if not offsets:
        return
    found = [leases[offset] for offset in offsets]
    holders = sorted({(lease.client_id, lease.arrived) for lease in found})
    numbers = {holder: number for number, holder in enumerate(holders)}
    yield from column("Q", len(found), (lease.receive_id for lease in found))
    yield from column("q", len(found), (lease.visible_at_ms for lease in found))
    yield from column("Q", len(found), (lease.attempt for lease in found))
    yield from column("I", len(found), (numbers[x.client_id, x.arrived] for x in found))
    yield number(len(holders))
    for client_id, arrived in holders:
        yield text(client_id)
        yield number(arrived)


def read_leases(source: Reader, first: int, end: int) -> Iterator[tuple[int, Lease]]:
    """Yield (offset, lease) by ascending offset, all in ``[first, end)``.

    Raises:
        MalformedStateError: They cannot be so.
    """
    offsets = source.column("Q")
    if not ascends(offsets, end) or any(offset < first for offset in offsets[:1]):
        raise source.malformed(f"leases outside [{first}, {end})")
    if not offsets:
        return
    columns = [source.column(code, len(offsets)) for code in _COLUMNS]
    holders = [_holder(source) for _ in range(source.number())]
    if any(number >= len(holders) for number in columns[-1]):
        raise source.malformed(f"a lease of another than {len(holders)} holders")
    for offset, receive_id, until_ms, attempt, holder in zip(offsets, *columns, strict=True):
        client_id, arrived = holders[holder]
        yield (
            offset,
            Lease(
                receive_id=receive_id,
                visible_at_ms=until_ms,
                attempt=attempt,
                client_id=client_id,
                arrived=arrived,
            ),
        )


def _holder(source: Reader) -> tuple[str, bool]:
    """Read a lease's client and whether the message is known to have arrived there."""
    return source.text(), source.number(high=1) == 1
