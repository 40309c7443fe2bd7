"""The certificates of a group, written to an API server in memory, with nodes that take them."""

from __future__ import annotations

import base64
import contextlib
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from cryptography import x509

from dledger_operator.api import names
from dledger_operator.cluster import issuing
from dledger_operator.cluster.api import ApiError
from dledger_operator.cluster.cluster import Cluster
from dledger_operator.cluster.issuing import Dates, Identity, Pair
from dledger_operator.controllers.certificate_keeper import DECIDE_S, REREAD_S
from dledger_operator.controllers.reconcile import Clock, Reconciler
from dledger_operator.decisions.certificates import SETTLE_S
from dledger_operator.metrics.metrics import Metrics
from tests.operator.fakes import FakeApi, FakeNodes, FakeWatched, Trouble, World
from tests.operator.samples import NOW, PLATFORM

SECURE = replace(PLATFORM, peer_tls=True)
SECRETS = {*names.own_secrets("orders")}


@dataclass
class Operator:
    """An operator of a platform with peer TLS."""

    world: World
    secure: bool = True
    now_s: float = 0.0
    now: datetime = field(default_factory=lambda: datetime.fromisoformat(NOW))

    def __post_init__(self) -> None:
        self.nodes = FakeNodes(self.world)
        self.metrics = Metrics()
        self.reconciler = Reconciler(
            self.world.group,
            cluster=Cluster(FakeApi(self.world), Metrics().wrote),
            nodes=self.nodes,
            watched=FakeWatched(self.world),
            platform=SECURE if self.secure else PLATFORM,
            metrics=self.metrics,
            lease_s=lambda: 0.0,
            clock=Clock(
                monotonic_s=lambda: self.now_s,
                now=lambda: self.now.strftime("%Y-%m-%dT%H:%M:%SZ"),
                fresh_id=lambda: "group-1",
            ),
        )

    async def rounds(self, count: int = 12, *, seconds: float = 1.0, pods: bool = True) -> None:
        """Do some rounds; without *pods*, none is made meanwhile."""
        for _ in range(count):
            self.reconciler.update(self.world.group)
            await self.reconciler.reconcile()
            if pods:
                self.world.run_pods()
            self.now_s += seconds
            self.now += timedelta(seconds=seconds)


def _world(spec: dict[str, Any] | None = None) -> World:
    world = World()
    world.put_group(spec)
    group = world.group
    group["metadata"]["creationTimestamp"] = NOW
    world.put(group)
    return world


def _files(world: World, name: str) -> dict[str, bytes]:
    data = world.objects["Secret", name]["data"]
    return {key: base64.b64decode(text) for key, text in data.items()}


def _bundle(world: World) -> list[x509.Certificate]:
    return x509.load_pem_x509_certificates(_files(world, "orders-peer-tls")["ca.crt"])


def _check_trust(world: World) -> None:
    """Every certificate in a Secret is signed by an authority that every Secret trusts."""
    for secret in SECRETS - {"orders-ca"}:
        trusted = x509.load_pem_x509_certificates(_files(world, secret)["ca.crt"])
        for other in SECRETS - {"orders-ca"}:
            files = _files(world, other)
            for name in files:
                if name.endswith(".crt") and name != "ca.crt":
                    (leaf,) = x509.load_pem_x509_certificates(files[name])
                    assert issuing.signer_of(leaf, trusted) is not None, (secret, other, name)
                    assert issuing.pair_of(files[name], files[name.replace(".crt", ".key")])


async def test_a_new_group_has_certificates_before_it_has_pods() -> None:
    """Mode required from the beginning; each certificate is bound to its member and role."""
    world = _world()

    await Operator(world).rounds(1)

    assert {name for kind, name in world.objects if kind == "Secret"} == SECRETS
    await Operator(world).rounds()
    peers = _files(world, "orders-peer-tls")
    assert peers["mode"] == b"required"
    assert peers["group"] == b"uid-1/orders-nodes.shop.svc"
    assert {*peers} == {"ca.crt", "mode", "group"} | {
        f"orders-{n}.{kind}" for n in range(3) for kind in ("crt", "key")
    }
    (leaf,) = x509.load_pem_x509_certificates(peers["orders-1.crt"])
    names_ = leaf.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    hosts = ["orders-1", "orders-1.orders-nodes.shop.svc"]
    assert names_.get_values_for_type(x509.DNSName) == hosts
    roles = names_.get_values_for_type(x509.UniformResourceIdentifier)
    bound = "dledger-group:uid-1/orders-nodes.shop.svc/member/orders-1"
    assert roles == ["dledger:member/orders-1", bound]
    _check_trust(world)
    owner = world.objects["Secret", "orders-ca"]["metadata"]["ownerReferences"][0]
    assert owner["uid"] == "uid-1"
    kinds = world.writes
    assert kinds.index("Secret") < kinds.index("StatefulSet")


@pytest.mark.parametrize("after", [False, True], ids=["before-effect", "after-effect"])
async def test_a_founding_interrupted_at_any_call_ends_in_one_authority(after: bool) -> None:
    """The operator dies there; the next one goes on with what the Secrets hold."""
    whole = _world()
    await Operator(whole).rounds()

    for at in range(1, whole.trouble.calls + 1):
        world = _world()
        world.trouble = Trouble(at=at, after=after)
        with contextlib.suppress(ApiError):
            await Operator(world).rounds()
        world.trouble = Trouble()
        await Operator(world).rounds()

        _check_trust(world)
        assert len(_bundle(world)) == 1, at
        assert world.bootstraps == 1


async def test_a_converged_group_causes_no_write_and_no_event() -> None:
    """Not from the same operator, and not from one that has just started."""
    world = _world()
    operator = Operator(world)
    await operator.rounds()
    world.writes.clear()

    await operator.rounds(40, seconds=DECIDE_S * 3)
    await Operator(world, now=operator.now).rounds()

    assert world.writes == []
    assert world.events == ["GroupIdRecorded", "Founded"]


@pytest.mark.parametrize("name", sorted(SECRETS))
async def test_a_deleted_secret_is_made_again_and_told(name: str) -> None:
    """With the same authority, but for its own Secret: then a new one, in two phases."""
    world = _world()
    operator = Operator(world)
    await operator.rounds()
    before = _bundle(world)
    del world.objects["Secret", name]

    await operator.rounds(3, seconds=REREAD_S)

    assert {each for kind, each in world.objects if kind == "Secret"} == SECRETS
    assert "ChildRepaired" in world.events
    _check_trust(world)
    assert before[0] in _bundle(world)
    assert len(_bundle(world)) == (2 if name == "orders-ca" else 1)


async def test_a_lost_authority_is_replaced_in_two_phases() -> None:
    """The old one goes once no certificate of it was left for long enough."""
    world = _world()
    operator = Operator(world)
    await operator.rounds()
    (old,) = _bundle(world)
    del world.objects["Secret", "orders-ca"]
    leaf = _files(world, "orders-peer-tls")["orders-0.crt"]

    await operator.rounds(2, seconds=REREAD_S)
    assert _files(world, "orders-peer-tls")["orders-0.crt"] == leaf
    for _ in range(80):
        await operator.rounds(1, seconds=SETTLE_S / 20)
        _check_trust(world)

    (new,) = _bundle(world)
    assert new != old
    assert _files(world, "orders-peer-tls")["orders-0.crt"] != leaf
    assert "CertificatesRotated" in world.events
    world.writes.clear()
    await operator.rounds(40, seconds=DECIDE_S)
    assert world.writes == []


async def test_damaged_files_are_made_again_and_nothing_else() -> None:
    """A certificate without its key, or of another member, is none."""
    world = _world()
    operator = Operator(world)
    await operator.rounds()
    before = _files(world, "orders-peer-tls")
    secret = world.objects["Secret", "orders-peer-tls"]
    secret["data"]["orders-0.key"] = base64.b64encode(b"nothing").decode()
    secret["data"]["orders-1.crt"] = secret["data"]["orders-2.crt"]
    secret["data"]["orders-1.key"] = secret["data"]["orders-2.key"]
    world.put(secret)

    await operator.rounds(3, seconds=REREAD_S)

    after = _files(world, "orders-peer-tls")
    changed = {key for key in after if after[key] != before[key]}
    assert changed == {f"orders-{n}.{kind}" for n in (0, 1) for kind in ("crt", "key")}
    assert "ChildRepaired" in world.events
    _check_trust(world)


async def test_certificates_are_renewed_in_time_and_nothing_is_restarted() -> None:
    """The template of the pods stays as it is."""
    world = _world()
    operator = Operator(world)
    await operator.rounds()
    template = world.objects["StatefulSet", "orders"]["spec"]["template"]
    leaf = _files(world, "orders-peer-tls")["orders-0.crt"]

    operator.now += timedelta(days=61)
    await operator.rounds(3, seconds=DECIDE_S)

    assert _files(world, "orders-peer-tls")["orders-0.crt"] != leaf
    assert world.objects["StatefulSet", "orders"]["spec"]["template"] == template
    assert "CertificatesRotated" in world.events
    assert len(_bundle(world)) == 1


async def test_a_certificate_made_while_the_clock_was_ahead_is_valid_now() -> None:
    """It begins with the group, by the API server's clock."""
    world = _world()

    await Operator(world, now=datetime(2039, 1, 1, tzinfo=UTC)).rounds()

    (leaf,) = x509.load_pem_x509_certificates(_files(world, "orders-peer-tls")["orders-0.crt"])
    assert leaf.not_valid_before_utc < datetime.fromisoformat(NOW) < leaf.not_valid_after_utc


async def test_a_foreign_secret_is_not_touched_and_named() -> None:
    """Nor are pods made that would mount it, though it has our labels."""
    world = _world()
    foreign = {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": "orders-peer-tls", "labels": names.labels("orders")},
        "data": {},
    }
    world.put(foreign)

    await Operator(world).rounds()

    assert world.objects["Secret", "orders-peer-tls"]["data"] == {}
    assert ("StatefulSet", "orders") not in world.objects
    row = next(row for row in world.status["conditions"] if row["type"] == "Degraded")
    assert (row["status"], row["reason"]) == ("True", "ApplyRefused")
    assert "Secret orders-peer-tls: the name is taken by" in row["message"]


async def test_a_plain_group_accepts_both_until_every_pod_answers_over_tls() -> None:
    """A rollout of its pods brings it there; then nothing is restarted any more."""
    world = _world()
    await Operator(world, secure=False).rounds()
    assert not [name for kind, name in world.objects if kind == "Secret"]
    plain = _pods(world)

    operator = Operator(world)
    modes = []
    for _ in range(40):
        await operator.rounds(1)
        secret = world.objects.get(("Secret", "orders-peer-tls"))
        mode = _files(world, "orders-peer-tls")["mode"] if secret else b""
        modes.append((mode, len(plain & _pods(world))))

    assert {left for mode, left in modes if mode == b"both"} == {0, 1, 2, 3}
    assert {left for mode, left in modes if mode == b"required"} == {0}
    assert modes[-1] == (b"required", 0)
    assert operator.nodes.channels.credentials is not None
    assert not operator.nodes.channels.credentials.plain_too
    secured = _pods(world)
    await operator.rounds(20)
    assert _pods(world) == secured


@pytest.mark.parametrize("how", ["deleted", "damaged"])
async def test_plain_text_is_never_accepted_again_whoever_spoils_the_secret(how: str) -> None:
    """In the middle of a rollout, when older pods might be plain ones."""
    world = _world()
    operator = Operator(world)
    await operator.rounds()
    group = world.put_group({"podLabels": {"team": "shop"}})
    world.put({**group, "metadata": {**group["metadata"], "creationTimestamp": NOW}})
    await operator.rounds(3, pods=False)
    secret = world.objects["Secret", "orders-peer-tls"]
    if how == "deleted":
        del world.objects["Secret", "orders-peer-tls"]
    else:
        world.put({**secret, "data": dict.fromkeys(secret["data"], "AAAA")})
    operator.now_s += REREAD_S

    modes = set()
    for _ in range(5):
        await operator.rounds(1, pods=False)
        modes.add(_files(world, "orders-peer-tls").get("mode"))

    assert modes - {b"\0\0\0"} == {b"required"}


async def test_a_pod_that_is_being_made_anew_has_not_answered_over_tls() -> None:
    """While the last plain pod is gone and the next one not there, both are accepted."""
    world = _world()
    await Operator(world, secure=False).rounds()
    plain = _pods(world)
    operator = Operator(world)
    for _ in range(40):
        await operator.rounds(1, pods=False)
        if not plain & _pods(world):
            break
        world.run_pods()

    await operator.rounds(10, pods=False)
    before = _files(world, "orders-peer-tls")["mode"]
    await operator.rounds(10)

    assert (len(plain), before) == (3, b"both")
    assert _files(world, "orders-peer-tls")["mode"] == b"required"


def _pods(world: World) -> set[str]:
    return {each["metadata"]["uid"] for (kind, _), each in world.objects.items() if kind == "Pod"}


def _authority(world: World, name: str) -> None:
    dates = Dates(datetime.fromisoformat(NOW).timestamp(), datetime.fromisoformat(NOW).timestamp())
    pair = issuing.new_authority("somebody", dates)
    data = {"tls.crt": pair.chain, "tls.key": pair.key}
    encoded = {key: base64.b64encode(value).decode() for key, value in data.items()}
    metadata = {"name": name, "namespace": "shop"}
    world.put({"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "data": encoded})


async def test_an_authority_of_the_users_is_taken_and_followed_in_two_phases() -> None:
    """As cert-manager makes it."""
    world = _world({"peerTls": {"caSecretName": "corporate"}})
    _authority(world, "corporate")
    operator = Operator(world)
    await operator.rounds()
    _check_trust(world)
    first = _bundle(world)

    _authority(world, "corporate")
    for _ in range(80):
        await operator.rounds(1, seconds=SETTLE_S / 20)
        _check_trust(world)

    assert len(first) == 1
    assert len(_bundle(world)) == 1
    assert _bundle(world) != first


async def test_a_missing_authority_is_named_and_the_certificates_in_use_stay() -> None:
    """A condition says what to do."""
    world = _world({"peerTls": {"caSecretName": "corporate"}})
    _authority(world, "corporate")
    operator = Operator(world)
    await operator.rounds()
    before = _files(world, "orders-peer-tls")
    del world.objects["Secret", "corporate"]

    await operator.rounds(4, seconds=REREAD_S)

    row = next(row for row in world.status["conditions"] if row["type"] == "Degraded")
    assert row["reason"] == "AuthorityInvalid"
    assert "Secret corporate does not exist" in row["message"]
    assert _files(world, "orders-peer-tls") == before

    operator.now += timedelta(days=80)
    await operator.rounds(4, seconds=REREAD_S)
    row = next(row for row in world.status["conditions"] if row["type"] == "Degraded")
    assert row["reason"] == "CertificateExpiring"


async def test_no_key_is_in_statuses_events_and_errors(caplog: pytest.LogCaptureFixture) -> None:
    """They are in the Secrets alone."""
    caplog.set_level("DEBUG")
    world = _world()
    operator = Operator(world)
    await operator.rounds()

    shown = operator.nodes.channels.credentials
    assert shown is not None
    everything = [repr(shown), caplog.text, str(world.status)]
    everything += [str(m) for (kind, _), m in world.objects.items() if kind != "Secret"]
    assert not [text for text in everything if "PRIVATE KEY" in text]


async def test_certificates_of_before_are_issued_anew_and_read_until_all_have_them() -> None:
    """The operator is newer than the group: no restart, and nobody is refused meanwhile."""
    world = _world()
    operator = Operator(world)
    await operator.rounds()
    for name in SECRETS - {"orders-ca"}:
        _make_older(world, name)
    before = _files(world, "orders-peer-tls")

    await operator.rounds(3, seconds=REREAD_S)

    after = _files(world, "orders-peer-tls")
    assert after["orders-0.crt"] != before["orders-0.crt"]
    assert "group" not in after
    _check_trust(world)
    await operator.rounds(5, seconds=SETTLE_S / 4)
    assert _files(world, "orders-peer-tls")["group"] == b"uid-1/orders-nodes.shop.svc"
    assert _files(world, "orders-admin-tls")["group"] == b"uid-1/orders-nodes.shop.svc"


def _make_older(world: World, name: str) -> None:
    """Write a Secret as an operator did that knew no groups."""
    authority = _files(world, "orders-ca")
    (chain,) = [text for key, text in authority.items() if key.endswith(".crt")]
    (key,) = [text for file, text in authority.items() if file.endswith(".key")]
    dates = Dates(datetime.fromisoformat(NOW).timestamp(), datetime.fromisoformat(NOW).timestamp())
    files = _files(world, name)
    del files["group"]
    for file in [each for each in files if each.endswith(".crt") and each != "ca.crt"]:
        holder = file.removesuffix(".crt")
        hosts = (holder, f"{holder}.orders-nodes.shop.svc") if holder != "tls" else ()
        role = f"member/{holder}" if hosts else name.split("-")[1]
        pair = issuing.issue(Pair(chain, key), Identity(role, hosts), dates)
        files |= {file: pair.chain, f"{holder}.key": pair.key}
    data = {file: base64.b64encode(text).decode() for file, text in files.items()}
    world.put({**world.objects["Secret", name], "data": data})
