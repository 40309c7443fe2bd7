"""The Secrets of one group, as they were read last, and what is in them.

Secrets are fetched by name and kept in memory: the operator has no right to list or watch them.
Used by the certificate keeper.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from cryptography import x509

from dledger_operator.api import names
from dledger_operator.api.spec import BrokerGroup, Manifest
from dledger_operator.api.texts import SECRET_NAME
from dledger_operator.cluster import issuing
from dledger_operator.cluster.cluster import Cluster, owned
from dledger_operator.cluster.issuing import Identity, Pair
from dledger_operator.decisions.certificates import (
    ADMIN,
    BACKUP,
    COMPACTOR,
    Authority,
    Held,
    Leaf,
)
from dledger_operator.resources.certificates import files_of, secret

_AUTHORITY: Final = "authority-"
_SECRETS: Final[Mapping[str, Callable[[str], str]]] = {
    BACKUP: names.backup_tls,
    COMPACTOR: names.compactor_tls,
    ADMIN: names.admin_tls,
}
"""The Secret of each holder that is no member."""


@dataclass(frozen=True, slots=True)
class Read:
    """The Secrets of a group: files by Secret, of those that are the group's own.

    Attributes:
        files: Of each Secret that is there, what is in it.
        versions: The resourceVersion of each.
        external: The files of the Secret that the spec names; None if there is none.
    """

    files: Mapping[str, Mapping[str, bytes]]
    versions: Mapping[str, str]
    external: Mapping[str, bytes] | None = None


@dataclass(frozen=True, slots=True)
class Contents:
    """What the Secrets hold: pairs and certificates, and the same as the decision sees it.

    Attributes:
        held: For the decision.
        pairs: The certificates with their keys that are whole, by holder.
        keyed: The authorities with their keys, by fingerprint.
        known: The certificates of all authorities, by fingerprint.
        fault: Why the authority that the spec names cannot be used.
        damaged: Secrets that are there with something in them that cannot be read.
    """

    held: Held
    pairs: Mapping[str, Pair]
    keyed: Mapping[str, Pair]
    known: Mapping[str, x509.Certificate]
    fault: str
    damaged: frozenset[str]


async def read(cluster: Cluster, group: BrokerGroup) -> Read:
    """Return the Secrets. Raises ApiError."""
    files: dict[str, Mapping[str, bytes]] = {}
    versions: dict[str, str] = {}
    for name in names.own_secrets(group.name):
        found = await cluster.secret(group, name)
        if found is not None and owned(found, group):
            files[name] = files_of(found)
            versions[name] = found["metadata"]["resourceVersion"]
    external = None
    wanted = group.spec.peer_tls.ca_secret_name
    if wanted and SECRET_NAME.fits(wanted):
        found = await cluster.secret(group, wanted)
        external = None if found is None else files_of(found)
    return Read(files, versions, external)


def identity_of(group: BrokerGroup, holder: str) -> Identity:
    """Return whom a holder's certificate is for."""
    bound = group_of(group)
    if is_client(holder):
        return Identity(holder, group=bound)
    host = names.peer_host(group.namespace, group.name, holder)
    return Identity(f"member/{holder}", (holder, host), bound)


def group_of(group: BrokerGroup) -> str:
    """Return how certificates name a group: its uid, and the domain of its members."""
    return f"{group.uid}/{names.peer_domain(group.namespace, group.name)}"


def is_client(holder: str) -> bool:
    """Whether a holder only calls nodes, and is none."""
    return holder in _SECRETS


def contents(
    group: BrokerGroup,
    found: Read,
    holders: Iterable[str],
    given: Mapping[str, x509.Certificate] | None = None,
) -> Contents:
    """Return what is in the Secrets; what is damaged is left out.

    *given* has the authorities that the peers' Secret was seen to trust.
    """
    given = given or {}
    own = _authorities(found.files.get(names.authority(group.name), {}))
    external, fault = _external(group, found)
    keyed = {pair.fingerprint: pair for pair in own}
    if external is not None:
        keyed.setdefault(external.fingerprint, external)
    damaged = set()
    # Without the peers' Secret no node is told anything, whatever others have.
    bundles: dict[str, tuple[str, ...]] = {names.peer_tls(group.name): ()}
    known = {**given, **{print_: pair.certificate for print_, pair in keyed.items()}}
    for name in names.own_secrets(group.name)[1:]:
        if name not in found.files:
            continue
        certificates = issuing.bundle_of(found.files[name].get("ca.crt", b""))
        if not certificates:
            damaged.add(name)
        bundles[name] = tuple(map(issuing.fingerprint, certificates))
        known.update(zip(bundles[name], certificates, strict=True))
    ours = group_of(group).encode()
    pairs, leaves = {}, {}
    for holder in holders:
        name, certificate, key = place_of(group.name, holder)
        files = found.files.get(name, {})
        pair = issuing.pair_of(files.get(certificate, b""), files.get(key, b""))
        if pair is None and {certificate, key} & files.keys():
            damaged.add(name)
        identity = identity_of(group, holder)
        is_bound = pair is not None and issuing.fits(pair.certificate, identity)
        if pair is not None and (is_bound or issuing.fits(pair.certificate, identity.older)):
            pairs[holder] = pair
            signer = issuing.signer_of(pair.certificate, tuple(known.values()))
            signed_by = "" if signer is None else issuing.fingerprint(signer)
            leaves[holder] = Leaf(signed_by, issuing.ends_s(pair.certificate), is_bound=is_bound)
    held = Held(
        own=tuple(map(_authority, own)),
        external=None if external is None else _authority(external),
        is_external=bool(group.spec.peer_tls.ca_secret_name),
        bundles=bundles,
        leaves=leaves,
        is_bound=any(files.get("group") == ours for files in found.files.values()),
        given=tuple({**given, **dict.fromkeys(bundles.get(names.peer_tls(group.name), ()))}),
    )
    return Contents(held, pairs, keyed, known, fault, frozenset(damaged))


def place_of(group: str, holder: str) -> tuple[str, str, str]:
    """Return the Secret of a holder's certificate, and the files of certificate and key."""
    if (own := _SECRETS.get(holder)) is not None:
        return own(group), "tls.crt", "tls.key"
    return names.peer_tls(group), f"{holder}.crt", f"{holder}.key"


def authority_secret(group: BrokerGroup, pairs: Iterable[Pair]) -> Manifest:
    """Return the operator's own Secret with these authorities."""
    files: dict[str, bytes] = {}
    for pair in pairs:
        at = f"{_AUTHORITY}{pair.fingerprint[:16]}"
        files |= {f"{at}.crt": pair.chain, f"{at}.key": pair.key}
    return secret(group, names.authority(group.name), files)


def _authority(pair: Pair) -> Authority:
    return Authority(pair.fingerprint, issuing.ends_s(pair.certificate))


def _authorities(files: Mapping[str, bytes]) -> list[Pair]:
    """Return the authorities in the operator's own Secret, the one that ends first before."""
    found = []
    for file in files:
        if file.startswith(_AUTHORITY) and file.endswith(".crt"):
            key = files.get(f"{file.removesuffix('.crt')}.key", b"")
            pair = issuing.pair_of(files[file], key)
            if pair is not None and not issuing.authority_fault(pair):
                found.append(pair)
    return sorted(found, key=lambda pair: issuing.ends_s(pair.certificate))


def _external(group: BrokerGroup, found: Read) -> tuple[Pair | None, str]:
    """Return the authority that the spec names, or why there is none."""
    name = group.spec.peer_tls.ca_secret_name
    if not name:
        return None, ""
    if found.external is None:
        return None, f"Secret {name} does not exist"
    files = found.external
    pair = issuing.pair_of(files.get("tls.crt", b""), files.get("tls.key", b""))
    fault = issuing.authority_fault(pair)
    return (None, f"Secret {name}: {fault}") if fault else (pair, "")
