"""From whatever is left of a group's four Secrets: they become whole, and no node is left behind.

Each Secret is as it should be, absent, damaged, or has what another group's has. Nodes are modelled
by what they trust and hold: a kubelet projects the Secret now and then, each at a time of its own,
and a node takes of it what is sound. Time is the keeper's clock.
"""

from __future__ import annotations

import base64
import copy
import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Final

import pytest
from cryptography import x509

from dledger_operator.api import names
from dledger_operator.api.spec import BrokerGroup, Manifest
from dledger_operator.cluster import issuing
from dledger_operator.cluster.cluster import Cluster
from dledger_operator.controllers.certificate_keeper import CertificateKeeper
from dledger_operator.decisions.certificates import SETTLE_S
from dledger_operator.decisions.facts import facts_of
from dledger_operator.observed.observed import Observed, Ref
from dledger_operator.status.status import Event
from tests.operator.fakes import FakeApi, FakeNodes, World
from tests.operator.samples import NOW, PLATFORM, body

SECURE: Final = replace(PLATFORM, peer_tls=True)
SECRETS: Final = names.own_secrets("orders")
WHOLE_S: Final = 300.0
"""What is promised: a pod that starts this long after is trusted by all, and trusts them."""
STATES: Final = ("as it was", "absent", "damaged", "foreign")
TICK_S: Final = 10.0
KUBELET_S: Final = 90.0
"""The slowest sync of a kubelet: a minute, and half of one at most for the jitter."""
RESTART_S: Final = 130.0
"""When a pod is made anew: after the operator has read the Secrets again, before it may sign."""


def _group(replicas: int, uid: str = "uid-1") -> BrokerGroup:
    made = body({"replicas": replicas}, groupId="group-1", term=1, leader="orders-0")
    made["metadata"] |= {"uid": uid, "creationTimestamp": NOW}
    return SECURE.group(made)


@dataclass
class Operator:
    """One operator process that keeps the certificates of one group, and its clock."""

    group: BrokerGroup
    world: World
    now_s: float = 0.0
    events: list[Event] = field(default_factory=list)
    refused: dict[Ref, tuple[float, str]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.nodes = FakeNodes(self.world)
        self.begins_anew()

    def begins_anew(self) -> None:
        """Have another process go on, which remembers nothing."""
        self.nodes.channels.credentials = None
        self.keeper = CertificateKeeper(
            Cluster(FakeApi(self.world), lambda _: None),
            self.nodes,
            monotonic_s=lambda: self.now_s,
            now=self._now,
            post=self._post,
            refuse=lambda _, ref, why: self.refused.update({ref: (self.now_s, why)}),
        )
        self.is_new = True

    async def look(self) -> None:
        """Do what a round does: look, and act if something is due."""
        refusals = {ref: why for ref, (at_s, why) in self.refused.items() if self.now_s < at_s + 15}
        observed = Observed(refusals=refusals)
        seen = await self.keeper.seen(observed)
        if self.is_new or seen.due:
            self.is_new = False
            await self.keeper.tend(facts_of(self.group, observed))

    def _now(self) -> str:
        return (datetime.fromisoformat(NOW) + timedelta(seconds=self.now_s)).isoformat()

    async def _post(self, _: BrokerGroup, event: Event) -> None:
        self.events.append(event)


@dataclass(frozen=True)
class Projected:
    """What a kubelet projects of the peers' Secret: as far as it is sound."""

    trusts: frozenset[str]
    signers: Mapping[str, str]


class Cell:
    """The peers' Secret of one world, and every authority that was ever in a bundle."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._known: dict[str, x509.Certificate] = {}
        self._read: dict[str, Projected] = {}

    def projected(self) -> Projected | None:
        """Return what is projected now; None while there is no such Secret."""
        secret = self._world.objects.get(("Secret", "orders-peer-tls"))
        if secret is None:
            return None
        version = secret["metadata"]["resourceVersion"]
        if version not in self._read:
            self._read[version] = self._sound(secret)
        return self._read[version]

    def _sound(self, secret: Manifest) -> Projected:
        files = {key: base64.b64decode(text) for key, text in secret["data"].items()}
        trusted = issuing.bundle_of(files.get("ca.crt", b""))
        self._known.update({issuing.fingerprint(each): each for each in trusted})
        signers = {}
        for file, text in files.items():
            pair = issuing.pair_of(text, files.get(file.replace(".crt", ".key"), b""))
            if file.endswith(".crt") and file != "ca.crt" and pair is not None:
                signer = issuing.signer_of(pair.certificate, tuple(self._known.values()))
                signers[file.removesuffix(".crt")] = issuing.fingerprint(signer) if signer else "?"
        return Projected(frozenset(map(issuing.fingerprint, trusted)), signers)


@dataclass
class Node:
    """A node that runs, or one whose pod is made anew and waits for its certificate."""

    name: str
    cell: Cell
    trusts: frozenset[str] = frozenset()
    signer: str = ""

    @property
    def runs(self) -> bool:
        """Whether it has what it needs."""
        return bool(self.trusts and self.signer)

    def take(self) -> None:
        """Take what is new and sound; the rest stays as it is."""
        projected = self.cell.projected()
        if projected is not None:
            self.trusts = projected.trusts or self.trusts
            self.signer = projected.signers.get(self.name, self.signer)


def _disagreeing(nodes: list[Node]) -> list[tuple[str, str]]:
    """Return which nodes refuse which others that run."""
    running = [node for node in nodes if node.runs]
    return [(a.name, b.name) for a in running for b in running if b.signer not in a.trusts]


async def _founded(replicas: int, uid: str) -> dict[tuple[str, str], Manifest]:
    """Return the Secrets of a group that has its certificates."""
    operator = Operator(_group(replicas, uid), World())
    await operator.look()
    return operator.world.objects


def _spoil(
    world: World, name: str, state: str, foreign: Mapping[tuple[str, str], Manifest]
) -> None:
    secret = world.objects["Secret", name]
    if state == "absent":
        del world.objects["Secret", name]
    elif state == "damaged":
        garbage = base64.b64encode(b"-----BEGIN NOTHING-----").decode()
        world.put({**secret, "data": dict.fromkeys(secret["data"], garbage)})
    elif state == "foreign":
        world.put({**secret, "data": foreign["Secret", name]["data"]})


def _states() -> Iterator[tuple[str, ...]]:
    return itertools.product(STATES, repeat=len(SECRETS))


def _is_known(state: tuple[str, ...]) -> bool:
    """Whether the certificate of the authority in use is in a Secret that is left."""
    return "as it was" in state


async def _live_through(
    operator: Operator,
    nodes: list[Node],
    *,
    is_excused: bool = False,
    until_s: float = WHOLE_S + KUBELET_S,
    whole_s: float = WHOLE_S,
) -> None:
    """Let time pass, with a pod that is made anew; check that those that run trust each other."""
    began_s = operator.now_s
    while (since_s := operator.now_s - began_s) <= until_s:
        await operator.look()
        for number, node in enumerate(nodes):
            if not node.runs or (since_s + number * KUBELET_S / 3) % KUBELET_S < TICK_S:
                node.take()
        if since_s == RESTART_S:
            nodes[-1] = Node(nodes[-1].name, nodes[-1].cell)
        if not is_excused or since_s > whole_s:
            assert not _disagreeing(nodes), since_s
        if since_s >= whole_s:
            fresh = [Node(node.name, node.cell) for node in nodes]
            for node in fresh:
                node.take()
            assert all(node.runs for node in (*nodes, *fresh)), since_s
            assert not _disagreeing([*nodes, *fresh]) or is_excused, since_s
        operator.now_s += TICK_S


@pytest.mark.parametrize(
    ("replicas", "remembers"),
    [(1, True), (3, False), (3, True)],
    ids=["one node", "three nodes, restarted", "three nodes"],
)
async def test_from_any_secrets_the_group_is_whole_in_five_minutes(
    replicas: int, remembers: bool
) -> None:
    """Running nodes trust each other all the while, as far as their authority is known at all."""
    own, foreign = await _founded(replicas, "uid-1"), await _founded(replicas, "uid-2")
    for state in _states():
        if replicas == 1 and state[2] > state[3]:
            continue  # as with the two exchanged, which makes a difference to the operator alone
        world = World(objects=copy.deepcopy(own), version=100)
        operator, cell = Operator(_group(replicas), world), Cell(world)
        await operator.look()
        nodes = [Node(names.pod("orders", n), cell) for n in range(replicas)]
        for node in nodes:
            node.take()
        for name, how in zip(SECRETS, state, strict=True):
            _spoil(world, name, how, foreign)
        if not remembers:
            operator.begins_anew()

        is_excused = state[1] == "foreign" or not (remembers or _is_known(state))
        try:
            await _live_through(operator, nodes, is_excused=is_excused)
        except AssertionError as error:
            error.add_note(f"{replicas} nodes, {dict(zip(SECRETS, state, strict=True))}")
            raise
        assert {name for _, name in world.objects} == set(SECRETS)


async def _settled(replicas: int = 3) -> tuple[Operator, list[Node]]:
    """Return an operator that has kept a group for a while, and the group's nodes."""
    operator = Operator(_group(replicas), World(objects=await _founded(replicas, "uid-1")))
    operator.world.version = 100
    await operator.look()
    cell = Cell(operator.world)
    nodes = [Node(names.pod("orders", n), cell) for n in range(replicas)]
    for node in nodes:
        node.take()
    return operator, nodes


@pytest.mark.parametrize("name", SECRETS)
async def test_somebody_elses_secret_is_left_alone_and_the_others_are_kept(name: str) -> None:
    """Nobody is left behind meanwhile; once it is gone, the group is whole in five minutes."""
    operator, nodes = await _settled()
    world = operator.world
    theirs: Manifest = {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": name, "namespace": "shop"},
        "data": {},
    }
    for each in SECRETS:
        _spoil(world, each, "absent", {})
    world.put(theirs)

    await _live_through(operator, nodes, until_s=WHOLE_S, whole_s=float("inf"))

    assert world.objects["Secret", name]["data"] == {}
    assert {each for _, each in world.objects} >= {*SECRETS} - {"orders-ca"}
    assert "taken by" in operator.refused["Secret", name][1]
    del world.objects["Secret", name]
    await _live_through(operator, nodes)


async def test_the_old_authority_goes_once_nobody_needs_it() -> None:
    """After what was lost with its key was issued anew; then the group rests."""
    operator, nodes = await _settled()
    old = set(nodes[0].trusts)
    for name in ("orders-ca", "orders-peer-tls", "orders-admin-tls"):
        _spoil(operator.world, name, "absent", {})

    await _live_through(operator, nodes, until_s=4 * SETTLE_S)

    assert [len(node.trusts) for node in nodes] == [1, 1, 1]
    assert not old & nodes[0].trusts
    operator.world.writes.clear()
    await _live_through(operator, nodes, until_s=SETTLE_S)
    assert operator.world.writes == []


async def test_an_operator_that_cannot_sign_shows_the_administrators_certificate() -> None:
    """It has just started, and the authority's key is lost: nodes would not believe a new one."""
    operator, nodes = await _settled()
    admin = operator.world.objects["Secret", "orders-admin-tls"]["data"]["tls.crt"]
    for name in ("orders-ca", "orders-peer-tls"):
        _spoil(operator.world, name, "absent", {})
    operator.begins_anew()

    await operator.look()

    shown = operator.nodes.channels.credentials
    assert shown is not None
    assert shown.chain == base64.b64decode(admin)
    assert nodes[0].trusts <= set(map(issuing.fingerprint, issuing.bundle_of(shown.trusted)))
    await _live_through(operator, nodes)
    shown = operator.nodes.channels.credentials
    assert shown is not None
    assert shown.chain != base64.b64decode(admin)


@pytest.mark.parametrize(
    ("sound", "damaged"),
    [
        (b"\xa0\x03\x02\x01\x02", b"\xa0\x03\x02\x01\x01"),
        (b"\x2a\x86\x48\xce\x3d\x03\x01\x07", b"\x2a\x86\x48\xce\x3d\x03\x01\x06"),
    ],
    ids=["a version that there is not", "a curve that nobody knows"],
)
def test_a_pair_that_cannot_be_read_is_a_damaged_one(sound: bytes, damaged: bytes) -> None:
    """Else each round of the group would end with it, and nobody would be told why."""
    pair = issuing.new_authority("orders", issuing.Dates(0, 0))
    der = base64.b64decode(b"".join(pair.chain.splitlines()[1:-1]))
    body_64 = base64.encodebytes(der.replace(sound, damaged))
    chain = b"-----BEGIN CERTIFICATE-----\n" + body_64 + b"-----END CERTIFICATE-----\n"

    assert sound in der
    assert issuing.pair_of(pair.chain, pair.key) == pair
    assert issuing.pair_of(chain, pair.key) is None
