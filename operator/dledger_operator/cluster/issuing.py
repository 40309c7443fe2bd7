"""Keys and certificates of a group: made, signed and read. Random, and nothing else of I/O.

ECDSA with P-256. Certificates begin with the group (`Dates.since_s`), by the API server's clock: a
certificate that was made while the operator's clock was ahead is then valid all the same. Keys are
PEM in bytes; nothing here puts one into an error or a log line. Used by the certificate keeper.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Final

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from dledger_operator.decisions.certificates import AUTHORITY_S, LEAF_S

_EARLIER_S: Final = 3600.0
"""Certificates begin before the group, so that a node's clock may be behind."""
ROLE: Final = "dledger:"
"""Scheme of the roles in certificates: ``dledger:member/orders-0``, ``dledger:operator``. Nodes of
an older image read these; others believe them alone only while they are told to."""
GROUP_ROLE: Final = "dledger-group:"
"""Scheme of one group's roles: ``dledger-group:UID/orders-nodes.shop.svc/operator``."""


@dataclass(frozen=True, slots=True)
class Dates:
    """When a certificate of now begins, and from when its life counts, in Unix seconds."""

    since_s: float
    now_s: float


@dataclass(frozen=True, slots=True)
class Pair:
    """A certificate with its chain, and the key of it, as PEM."""

    chain: bytes
    key: bytes = field(repr=False)

    @property
    def certificate(self) -> x509.Certificate:
        """The certificate itself, which comes first."""
        return x509.load_pem_x509_certificates(self.chain)[0]

    @property
    def fingerprint(self) -> str:
        """SHA-256 of the certificate."""
        return fingerprint(self.certificate)


@dataclass(frozen=True, slots=True)
class Identity:
    """Whom a certificate is for: its role, and for a server the names that it is asked by.

    *group* is ``UID/DOMAIN``: whose role it is.
    """

    role: str
    hosts: tuple[str, ...] = ()
    group: str = ""

    @property
    def older(self) -> Identity:
        """The same as certificates had it before they named the group."""
        return Identity(self.role, self.hosts)

    @property
    def uris(self) -> list[str]:
        """What its certificate says of its role."""
        bound = [f"{GROUP_ROLE}{self.group}/{self.role}"] if self.group else []
        return [ROLE + self.role, *bound]


def fingerprint(certificate: x509.Certificate) -> str:
    """Return the SHA-256 of a certificate in hex."""
    return certificate.fingerprint(hashes.SHA256()).hex()


def ends_s(certificate: x509.Certificate) -> float:
    """Return a certificate's end in Unix seconds."""
    return certificate.not_valid_after_utc.timestamp()


def new_authority(group: str, dates: Dates) -> Pair:
    """Return a new authority; its name is its own, so that chains are built by name."""
    key = ec.generate_private_key(ec.SECP256R1())
    serial = x509.random_serial_number()
    name = _name(f"{group} peers {serial:x}"[:64])
    builder = _builder(
        name, name, key.public_key(), dates, end_s=dates.now_s + AUTHORITY_S, serial=serial
    )
    usage = _usage(signs=True)
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    builder = builder.add_extension(usage, critical=True)
    return Pair(_pem(builder.sign(key, hashes.SHA256())), _key_pem(key))


def issue(authority: Pair, identity: Identity, dates: Dates) -> Pair:
    """Return a new certificate for *identity*, signed by *authority*, ending no later than that."""
    issuer = authority.certificate
    signing = serialization.load_pem_private_key(authority.key, None)
    if not isinstance(signing, ec.EllipticCurvePrivateKey):
        raise TypeError("the authority's key is not for ECDSA")
    key = ec.generate_private_key(ec.SECP256R1())
    name = _name((identity.hosts[0] if identity.hosts else identity.role)[:64])
    end_s = min(dates.now_s + LEAF_S, ends_s(issuer))
    serial = x509.random_serial_number()
    dates = Dates(max(dates.since_s, issuer.not_valid_before_utc.timestamp()), dates.now_s)
    builder = _builder(name, issuer.subject, key.public_key(), dates, end_s=end_s, serial=serial)
    names: list[x509.GeneralName] = [x509.DNSName(host) for host in identity.hosts]
    names += [x509.UniformResourceIdentifier(uri) for uri in identity.uris]
    uses = [ExtendedKeyUsageOID.CLIENT_AUTH]
    if identity.hosts:
        uses.insert(0, ExtendedKeyUsageOID.SERVER_AUTH)
    for extension, critical in (
        (x509.BasicConstraints(ca=False, path_length=None), True),
        (_usage(signs=False), True),
        (x509.ExtendedKeyUsage(uses), False),
        (x509.SubjectAlternativeName(names), False),
    ):
        builder = builder.add_extension(extension, critical=critical)
    return Pair(_pem(builder.sign(signing, hashes.SHA256())), _key_pem(key))


def bundle_of(text: bytes) -> tuple[x509.Certificate, ...]:
    """Return the certificates of a PEM bundle; none if it is damaged."""
    try:
        return tuple(x509.load_pem_x509_certificates(text))
    except (ValueError, x509.InvalidVersion):
        return ()


def pem(certificates: Iterable[x509.Certificate]) -> bytes:
    """Return certificates as a PEM bundle."""
    return b"".join(map(_pem, certificates))


def pair_of(chain: bytes, key: bytes) -> Pair | None:
    """Return a certificate with its key; None if either is damaged, or they are not of a pair."""
    found = bundle_of(chain)
    try:
        private = serialization.load_pem_private_key(key, None)
        same = bool(found) and found[0].public_key() == private.public_key()
    except (ValueError, TypeError, UnsupportedAlgorithm):
        return None
    return Pair(chain, key) if same else None


def authority_fault(pair: Pair | None) -> str:
    """Return why a pair cannot be the authority of a group; empty if it can."""
    if pair is None:
        return "tls.crt and tls.key are not a certificate and its key"
    certificate = pair.certificate
    try:
        constraints = certificate.extensions.get_extension_for_class(x509.BasicConstraints)
        is_authority = constraints.value.ca
    except (x509.ExtensionNotFound, ValueError):
        is_authority = False
    if not is_authority:
        return "tls.crt is not of an authority (isCA: true)"
    if not isinstance(certificate.public_key(), ec.EllipticCurvePublicKey):
        return "tls.key is not for ECDSA (privateKey.algorithm: ECDSA)"
    if signer_of(certificate, [certificate]) is None:
        return "tls.crt is not signed by itself: the nodes trust it alone, so it has to be a root"
    return ""


def signer_of(
    certificate: x509.Certificate, known: Sequence[x509.Certificate]
) -> x509.Certificate | None:
    """Return which of *known* signed a certificate."""
    for one in known:
        try:
            certificate.verify_directly_issued_by(one)
        except (ValueError, TypeError, InvalidSignature):
            continue
        return one
    return None


def fits(certificate: x509.Certificate, identity: Identity) -> bool:
    """Whether a certificate is for *identity*."""
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except (x509.ExtensionNotFound, ValueError):
        return False
    roles = names.get_values_for_type(x509.UniformResourceIdentifier)
    return (
        roles == identity.uris and tuple(names.get_values_for_type(x509.DNSName)) == identity.hosts
    )


def _builder(
    subject: x509.Name,
    issuer: x509.Name,
    key: ec.EllipticCurvePublicKey,
    dates: Dates,
    *,
    end_s: float,
    serial: int,
) -> x509.CertificateBuilder:
    begin_s = dates.since_s - _EARLIER_S
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(serial)
        .not_valid_before(datetime.fromtimestamp(begin_s, UTC))
        .not_valid_after(datetime.fromtimestamp(max(end_s, begin_s + 1), UTC))
    )


def _usage(*, signs: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs,
        crl_sign=signs,
        encipher_only=False,
        decipher_only=False,
    )


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)


def _key_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
