"""Connections to peer ports over real TLS: who is believed, and when plain text is tried."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace

import pytest

from dledger.errors import Unavailable
from dledger_operator.cluster import issuing
from dledger_operator.cluster.issuing import Dates, Identity
from dledger_operator.cluster.nodes import Nodes, log_since
from dledger_operator.cluster.peer_channels import Credentials
from dledger_operator.observed.observed import Pod
from tests.operator.fake_nodes import FakeGroup

DATES = Dates(time.time() - 60, time.time())


@dataclass
class Encrypted:
    """A group whose nodes 0 and 1 speak TLS, and the third plain text."""

    nodes: FakeGroup
    authority: issuing.Pair

    @property
    def credentials(self) -> Credentials:
        """The operator's."""
        pair = issuing.issue(self.authority, Identity("operator"), DATES)
        return Credentials(self.authority.chain, pair.chain, pair.key)

    @property
    def pods(self) -> dict[str, Pod]:
        """Its pods."""
        return {f"orders-{n}": Pod(name=f"orders-{n}", ip=self.nodes.ip(n)) for n in range(3)}

    async def encrypt(self, ordinal: int, shown: str, *, plain_too: bool = False) -> None:
        """Have a node show the certificate of a member."""
        identity = Identity(f"member/{shown}", (shown,))
        pair = issuing.issue(self.authority, identity, DATES)
        trusted = self.authority.chain
        files = {"trusted": trusted, "chain": pair.chain, "key": pair.key}
        await self.nodes.encrypt(ordinal, **files, plain_too=plain_too)


@pytest.fixture
async def group() -> AsyncIterator[Encrypted]:
    """The group."""
    nodes = FakeGroup("orders", first_octet=251)
    made = Encrypted(nodes, issuing.new_authority("orders", DATES))
    await nodes.start()
    for ordinal in (0, 1):
        await made.encrypt(ordinal, f"orders-{ordinal}")
    yield made
    await nodes.stop()


async def test_a_node_is_asked_over_tls_and_known_by_its_name(group: Encrypted) -> None:
    """One that shows another name, or speaks plain text, is silent."""
    await group.encrypt(1, "orders-2")
    nodes = Nodes("orders")
    nodes.channels.credentials = group.credentials

    for _ in range(3):
        seen = await nodes.poll(group.pods, everyone=True)

    assert seen.keys() == {"orders-0"}
    assert nodes.over_tls == {"orders-0"}
    await nodes.close()


async def test_while_both_are_accepted_a_plain_node_is_asked_in_plain_text(
    group: Encrypted,
) -> None:
    """It does not count as one that answered over TLS; it does as soon as it takes both."""
    nodes = Nodes("orders")
    nodes.channels.credentials = replace(group.credentials, plain_too=True)

    for _ in range(3):
        seen = await nodes.poll(group.pods, everyone=True)
    assert seen.keys() == group.pods.keys()
    assert nodes.over_tls == {"orders-0", "orders-1"}

    await group.encrypt(2, "orders-2", plain_too=True)
    await nodes.poll(group.pods, everyone=True)
    assert nodes.over_tls == group.pods.keys()
    await nodes.close()


async def test_a_stranger_gets_no_answer(group: Encrypted) -> None:
    """Neither in plain text, nor with a certificate of another authority."""
    other = replace(group, authority=issuing.new_authority("orders", DATES))
    for credentials in (
        None,
        replace(other.credentials, trusted=group.authority.chain),
    ):
        nodes = Nodes("orders")
        nodes.channels.credentials = credentials
        pods = {name: pod for name, pod in group.pods.items() if name != "orders-2"}
        assert await nodes.poll(pods, everyone=True) == {}
        with pytest.raises(Unavailable):
            await log_since(pods.values(), 1, channels=nodes.channels)
        await nodes.close()
