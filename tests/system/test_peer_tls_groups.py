"""Two groups with one authority: a certificate is one group's, whatever it says of its role.

Whole nodes with mutual TLS. Whoever shows a certificate of the other group is nobody here, at each
port of peers, and whoever asks knows the nodes of its own group alone.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import grpc
import grpc.aio
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from dledger.client import AdminClient
from dledger.errors import DledgerError
from dledger.peers.handshake import Handshake
from dledger.rpc.callers import Group, role_of_uris
from dledger.rpc.mutual_tls import identity_of
from dledger_operator.cluster.issuing import Pair
from tests.system.peer_certificates import Mounted
from tests.system.secure_nodes import (
    NAMES,
    SecureNodes,
    call,
    control,
    handshake,
    keeps,
    peer_tls,
)
from tests.waiting import eventually, eventually_async

OURS, THEIRS = "u-1/orders-nodes.shop.svc", "u-2/orders-nodes.tenant-b.svc"
_ADMIN = "/dledger.v1.Admin/"
_NO_ANSWERS = (grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.UNAVAILABLE)
ASKED = (
    *(("operator", f"{_ADMIN}{each}") for each in ("Status", "ListGroups", "ChangeMembers")),
    *(("admin", f"{_ADMIN}{each}") for each in ("ForceNewGroup", "DeleteTopic", "DescribeTopic")),
    *(("backup", f"{_ADMIN}{each}") for each in ("ExportPlan", "Export", "Snapshot")),
    ("member/orders-1", "/dledger.v1.Ledger/Append"),
    ("member/orders-1", "/dledger.v1.Records/Read"),
    ("member/orders-1", "/apache.rocketmq.v2.MessagingService/SendMessage"),
)


@pytest.fixture
async def nodes(tmp_path: Path) -> AsyncIterator[SecureNodes]:
    """Three nodes that believe the certificates of their group alone."""
    mounted = Mounted(tmp_path / "peer-tls", OURS)
    mounted.write({name: mounted.member(name) for name in NAMES}, is_bound=True)
    group = SecureNodes(tmp_path, mounted)
    yield group
    await group.stop()


def _theirs(mounted: Mounted, path: Path, group: str = THEIRS) -> Mounted:
    """Return another group's certificates, of the same authority."""
    theirs = Mounted(path, group)
    theirs.authorities = mounted.authorities
    return theirs


async def _answer(of: Callable[[], Awaitable[grpc.StatusCode]]) -> grpc.StatusCode:
    """Return the first answer that is the node's, and not the machine's that has no time."""

    async def asked() -> grpc.StatusCode | None:
        try:
            code = await of()
        except TimeoutError:
            return None
        return code if code not in _NO_ANSWERS else None

    return await eventually_async(asked)


async def _called(mounted: Mounted, address: str, pair: Pair, path: str) -> grpc.StatusCode:
    return await _answer(lambda: call(mounted.channel(address, "orders-0", pair), path))


async def _is_taken(nodes: SecureNodes, pair: Pair, tries: int = 4) -> bool:
    """Whether orders-1 may send entries with its connect token; a refusal may be slow to come."""
    said = Handshake.decode(handshake(nodes, sender=1, name="orders-1"))
    for _ in range(tries):
        with nodes.nodes[0]._peers.replication.admitted(said, "member/orders-1") as given:
            if not await keeps(nodes.mounted, given.port, given.token, pair):
                return False
    return True


async def test_each_role_of_the_other_group_is_refused(nodes: SecureNodes, tmp_path: Path) -> None:
    """At both ports, handshake and connect token included; the same of this group is not."""
    await nodes.found(0, 1, 2)
    mounted, address = nodes.mounted, nodes.peer_address(0)
    others = {
        "the other group": _theirs(mounted, tmp_path / "other"),
        "an older one of this name": _theirs(mounted, tmp_path / "older", f"u-0/{mounted.domain}"),
        "a longer uid": _theirs(mounted, tmp_path / "longer", f"u-11/{mounted.domain}"),
        "no group": _theirs(mounted, tmp_path / "none", ""),
    }
    for role, path in ASKED:
        hosts = ("orders-1",) if "/" in role else ()
        ours = await _called(mounted, address, mounted.issue(role, *hosts), path)
        assert ours is not grpc.StatusCode.PERMISSION_DENIED, (role, path)
        for who, other in others.items():
            code = await _called(mounted, address, other.issue(role, *hosts), path)
            assert code is grpc.StatusCode.PERMISSION_DENIED, (who, role, path)

    said = handshake(nodes, sender=1, name="orders-1")
    own = mounted.member("orders-1")
    assert await _answer(lambda: control(nodes, own, said)) is grpc.StatusCode.OK
    for who, other in others.items():
        pair = other.member("orders-1")
        code = await _answer(lambda pair=pair: control(nodes, pair, said))  # type: ignore[misc]
        assert code is grpc.StatusCode.PERMISSION_DENIED, who
        assert not await _is_taken(nodes, pair), who
    assert await _is_taken(nodes, own, tries=1)


def _forged(mounted: Mounted, *uris: str) -> Pair:
    """Return a certificate of the authority with any URIs, as no operator makes one."""
    signer = mounted.authorities[-1]
    signing = serialization.load_pem_private_key(signer.key, None)
    assert isinstance(signing, ec.EllipticCurvePrivateKey)
    like, key = mounted.member("orders-1").certificate, ec.generate_private_key(ec.SECP256R1())
    names: list[x509.GeneralName] = [x509.UniformResourceIdentifier(uri) for uri in uris]
    certificate = (
        x509.CertificateBuilder()
        .subject_name(like.subject)
        .issuer_name(signer.certificate.subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(like.not_valid_before_utc)
        .not_valid_after(like.not_valid_after_utc)
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .sign(signing, hashes.SHA256())
    )
    private = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    return Pair(certificate.public_bytes(serialization.Encoding.PEM), private)


async def test_roles_are_compared_whole(nodes: SecureNodes) -> None:
    """What gRPC says of a URI ends at its first NUL; the certificate does not."""
    await nodes.found(0, 1, 2)
    mounted, address = nodes.mounted, nodes.peer_address(0)
    ours = f"dledger-group:{OURS}"
    refused = [
        [f"{ours}/admin\0"],
        [f"{ours}/admin\0x"],
        [f"{ours}/admin", f"{ours}/operator"],
        [f"{ours}/admin", f"dledger-group:{THEIRS}/admin"],
        [f"{ours}/ADMIN"],
        [f"{ours}//admin"],
        [f"{ours}/admin/"],
        [f"{ours}/admin?x"],
        [f"DLEDGER-GROUP:{OURS}/admin"],
        [f"dledger-group:{OURS}admin"],
        ["dledger-group:/admin"],
        ["dledger:admin"],
        [],
    ]
    path = f"{_ADMIN}ListGroups"
    for uris in refused:
        pair = _forged(mounted, *uris)
        code = await _called(mounted, address, pair, path)
        assert code is grpc.StatusCode.PERMISSION_DENIED, uris
    pair = _forged(mounted, f"{ours}/admin")
    assert await _called(mounted, address, pair, path) is grpc.StatusCode.OK


async def test_certificates_of_before_are_believed_until_all_are_new(
    nodes: SecureNodes, tmp_path: Path
) -> None:
    """Without a restart; another group's never are."""
    mounted = nodes.mounted
    pairs = {name: mounted.member(name) for name in NAMES}
    older = _theirs(mounted, tmp_path / "older", "")
    mounted.write({**pairs, "orders-1": older.issue("member/orders-1", "orders-1")})
    await nodes.found(0, 1, 2)
    theirs = _theirs(mounted, tmp_path / "other")
    address, path = nodes.peer_address(0), f"{_ADMIN}ListGroups"

    async def asked(of: Mounted) -> grpc.StatusCode:
        return await _called(mounted, address, of.issue("admin"), path)

    assert await asked(older) is grpc.StatusCode.OK
    assert await asked(theirs) is grpc.StatusCode.PERMISSION_DENIED
    mounted.write(pairs, is_bound=True)
    await eventually(lambda: all(peer_tls(nodes, n).group.is_required for n in range(3)))
    assert await asked(older) is grpc.StatusCode.PERMISSION_DENIED
    assert await asked(mounted) is grpc.StatusCode.OK
    async with nodes.client(0) as client:
        await client.append("t", [b"x"])


async def test_a_node_of_the_other_group_is_not_taken_for_one_of_ours(
    nodes: SecureNodes, tmp_path: Path
) -> None:
    """It has the same name and an authority that is trusted; its host is another."""
    await nodes.found(0, 1, 2)
    theirs = _theirs(nodes.mounted, tmp_path / "other")
    for of, answers in ((nodes.mounted, True), (theirs, False)):
        pair = of.issue("admin")
        directory = tmp_path / f"of-{of.group.partition('/')[0]}"
        directory.mkdir()
        files = {"ca.crt": of.trusted, "tls.crt": pair.chain, "tls.key": pair.key}
        for name, text in {**files, "group": of.group.encode()}.items():
            (directory / name).write_bytes(text)
        tls = identity_of(directory).to("orders-0")
        assert tls.name == f"orders-0.{of.domain}"
        async with AdminClient(nodes.peer_address(0), timeout_s=10, tls=tls) as client:
            if answers:
                assert (await client.status()).name == "orders-0"
            else:
                with pytest.raises(DledgerError):
                    await client.status()


@pytest.mark.parametrize(
    ("uris", "required", "role"),
    [
        (["dledger:admin"], False, "admin"),
        (["dledger:admin"], True, ""),
        (["dledger:admin", f"dledger-group:{OURS}/backup"], True, "backup"),
        (["dledger:admin", f"dledger-group:{THEIRS}/admin"], False, ""),
        (["dledger:admin", "dledger:backup"], False, ""),
        (["https://dledger-group:u-1"], False, ""),
    ],
)
def test_the_role_is_the_groups_own_if_the_certificate_names_one(
    uris: list[str], required: bool, role: str
) -> None:
    """What it says beside that is for nodes of before."""
    assert role_of_uris(uris, Group(OURS, is_required=required)) == role
