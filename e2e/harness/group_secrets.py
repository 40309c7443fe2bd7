"""The four Secrets with the certificates of a group's peers: how a story spoils and judges them.

What is whole is worked out from the files, by rules of its own: none of the operator's code is
asked about the operator's work. Used by stories.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, Final, TypeAlias

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from e2e.harness.waiting import HarnessError
from e2e.harness.world import PYTHON, BrokerGroup, eventually

AUTHORITY: Final = "ca"
PEERS: Final = "peer-tls"
BACKUP: Final = "backup-tls"
ADMIN: Final = "admin-tls"
KINDS: Final = (AUTHORITY, PEERS, BACKUP, ADMIN)
"""The Secrets of a group ``orders`` are ``orders-ca`` and so on."""
POLL_S: Final = 3.0
"""What is waited for takes minutes, and each look some of the processor that nodes need."""
_BUNDLE: Final = "ca.crt"
_GARBAGE: Final = b"-----BEGIN NOTHING-----"
_ENDED: Final = timedelta(hours=1)
"""How long ago a certificate ended that has: more than clocks of machines differ."""
_SHOWN: Final = """
import ssl
print(ssl.get_server_certificate(("127.0.0.1", 20911), timeout=10))
"""
"""What a node shows at its peers' port, whoever asks."""

Files: TypeAlias = Mapping[str, bytes]


@dataclass(frozen=True, slots=True)
class GroupSecrets:
    """The Secrets of one group."""

    group: BrokerGroup

    def name(self, kind: str) -> str:
        """Return the name of one of them."""
        return f"{self.group.name}-{kind}"

    def read(self) -> dict[str, Files]:
        """Return the files of those that are there, by kind."""
        names = {self.name(kind): kind for kind in KINDS}
        asked = ("get", "secret", *names, "-o", "json", "--ignore-not-found")
        text = self.group.namespace.kubectl(*asked)
        return {
            names[each["metadata"]["name"]]: _decode(each.get("data") or {})
            for each in (json.loads(text)["items"] if text.strip() else ())
        }

    def delete(self, *kinds: str) -> None:
        """Delete some of them, at once."""
        self.group.namespace.kubectl("delete", "secret", *map(self.name, kinds))

    def write(self, kind: str, files: Files) -> None:
        """Have a Secret that is there hold these files and no others."""
        value = {key: base64.b64encode(text).decode() for key, text in files.items()}
        patch = json.dumps([{"op": "replace", "path": "/data", "value": value}])
        self.group.namespace.kubectl("patch", "secret", self.name(kind), "--type=json", "-p", patch)

    def damage(self, kind: str) -> None:
        """Have every file of one hold nothing of use."""
        self.write(kind, dict.fromkeys(self.read()[kind], _GARBAGE))

    def find_faults(self) -> list[str]:
        """Return what is wrong with them now, as `find_faults` does."""
        return find_faults(self.read(), self.group.pods())

    def wait_whole(self, deadline_s: float) -> None:
        """Wait until nothing is wrong with them. Raises HarnessError, which says what is."""
        try:
            eventually(
                f"the Secrets of {self.group.name} are whole",
                lambda: not self.find_faults(),
                deadline_s,
                POLL_S,
            )
        except HarnessError as late:
            raise HarnessError(f"{late}: {'; '.join(self.find_faults())}") from None

    def is_shown(self, pod: str) -> bool:
        """Whether a node shows its peers the certificate that is in the Secret."""
        said = self.group.namespace.kubectl("exec", pod, "--", PYTHON, "-c", _SHOWN, check=False)
        shown = _certificates(said.encode())
        wanted = _certificates(self.read().get(PEERS, {}).get(f"{pod}.crt", b""))
        return bool(shown) and shown[:1] == wanted[:1]

    def wait_shown(self, deadline_s: float) -> None:
        """Wait until every node shows what is in the Secret. Raises HarnessError."""
        for pod in self.group.pods():
            what = f"{pod} shows what is in its Secret"
            eventually(what, partial(self.is_shown, pod), deadline_s, POLL_S)


def _decode(data: Mapping[str, str]) -> dict[str, bytes]:
    return {key: base64.b64decode(text) for key, text in data.items()}


def find_faults(secrets: Mapping[str, Files], members: Collection[str]) -> list[str]:
    """Return what keeps a pod of *members* that starts now from its peers; empty: it takes part.

    Everybody has a certificate with its key that has not ended, of an authority that everybody
    trusts, and the authority's own Secret has the key of one of these.
    """
    faults = [f"{kind} is missing" for kind in KINDS if kind not in secrets]
    bundles = {
        kind: _certificates(files.get(_BUNDLE, b""))
        for kind, files in secrets.items()
        if kind != AUTHORITY
    }
    faults += [f"{kind} trusts nobody" for kind, bundle in bundles.items() if not bundle]
    first, *others = bundles.values() or [[]]
    trusted = [one for one in first if all(one in bundle for bundle in others)]
    wanted = [(PEERS, each) for each in sorted(members)] + [(BACKUP, "tls"), (ADMIN, "tls")]
    for kind, holder in wanted:
        pair = _pair(secrets.get(kind, {}), holder)
        if kind in secrets and (fault := _find_fault(pair, trusted)):
            faults.append(f"{kind}: {holder} {fault}")
    if AUTHORITY in secrets and not set(trusted) & set(list_authorities(secrets[AUTHORITY])):
        faults.append(f"{AUTHORITY} has the key of nobody who is trusted")
    return faults


def list_authorities(files: Files) -> list[x509.Certificate]:
    """Return the authorities in the operator's own Secret that come with their keys."""
    holders = (file.removesuffix(".crt") for file in files if file.endswith(".crt"))
    pairs = (_pair(files, holder) for holder in holders)
    return [pair[0] for pair in pairs if pair is not None]


def list_trusted(files: Files) -> list[x509.Certificate]:
    """Return whom one of the other Secrets trusts."""
    return _certificates(files.get(_BUNDLE, b""))


def list_leaves(secrets: Mapping[str, Files]) -> list[x509.Certificate]:
    """Return every certificate but those of authorities."""
    return [
        one
        for kind, files in secrets.items()
        if kind != AUTHORITY
        for file, text in files.items()
        if file.endswith(".crt") and file != _BUNDLE
        for one in _certificates(text)[:1]
    ]


def expire(secrets: Mapping[str, Files], *, with_authority: bool) -> dict[str, dict[str, bytes]]:
    """Return the same Secrets as they are when all certificates have ended; keys stay.

    The authority, of which there has to be one, has ended only if that is asked for.
    """
    files = secrets[AUTHORITY]
    (holder,) = (file.removesuffix(".crt") for file in files if file.endswith(".crt"))
    pair = _pair(files, holder)
    if pair is None:
        raise HarnessError("the authority's Secret is damaged already")
    authority, key = pair
    ended = _reissue(authority, authority, key) if with_authority else authority
    after = {kind: dict(each) for kind, each in secrets.items()}
    after[AUTHORITY][f"{holder}.crt"] = _pem([ended])
    for kind in KINDS[1:]:
        after[kind][_BUNDLE] = _pem([ended])
        for file in after[kind]:
            if file.endswith(".crt") and file != _BUNDLE:
                (leaf, *_) = _certificates(after[kind][file])
                after[kind][file] = _pem([_reissue(leaf, authority, key)])
    return after


def _reissue(
    one: x509.Certificate, issuer: x509.Certificate, key: ec.EllipticCurvePrivateKey
) -> x509.Certificate:
    """Return a certificate as it was, but that it has ended."""
    end = datetime.now(UTC) - _ENDED
    builder = (
        x509.CertificateBuilder()
        .subject_name(one.subject)
        .issuer_name(issuer.subject)
        .public_key(one.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(end - timedelta(days=90))
        .not_valid_after(end)
    )
    for extension in one.extensions:
        builder = builder.add_extension(extension.value, critical=extension.critical)
    return builder.sign(key, hashes.SHA256())


def _find_fault(
    pair: tuple[x509.Certificate, Any] | None, trusted: Iterable[x509.Certificate]
) -> str:
    """Return what is wrong with a holder's certificate; empty: nothing."""
    if pair is None:
        return "has no certificate with its key"
    if pair[0].not_valid_after_utc <= datetime.now(UTC):
        return "has a certificate that has ended"
    if not any(_is_signed_by(pair[0], one) for one in trusted):
        return "has a certificate of nobody whom all trust"
    return ""


def _is_signed_by(one: x509.Certificate, authority: x509.Certificate) -> bool:
    try:
        one.verify_directly_issued_by(authority)
    except (ValueError, TypeError, InvalidSignature):
        return False
    return True


def _pair(files: Files, holder: str) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey] | None:
    """Return a holder's certificate and key, if both are sound and of a pair."""
    found = _certificates(files.get(f"{holder}.crt", b""))
    try:
        key = serialization.load_pem_private_key(files.get(f"{holder}.key", b""), None)
    except (ValueError, TypeError):
        return None
    is_whole = bool(found) and isinstance(key, ec.EllipticCurvePrivateKey)
    if not is_whole or found[0].public_key() != key.public_key():
        return None
    assert isinstance(key, ec.EllipticCurvePrivateKey)
    return found[0], key


def _certificates(text: bytes) -> list[x509.Certificate]:
    """Return the certificates of a PEM text; none if it is damaged."""
    try:
        return x509.load_pem_x509_certificates(text)
    except ValueError:
        return []


def _pem(certificates: Iterable[x509.Certificate]) -> bytes:
    encoding = serialization.Encoding.PEM
    return b"".join(one.public_bytes(encoding) for one in certificates)
