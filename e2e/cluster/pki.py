"""One certificate authority and what it signs. Made afresh each time the cluster comes up."""

from __future__ import annotations

import datetime
import ipaddress
from dataclasses import dataclass

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

LIFETIME = datetime.timedelta(days=365)
CLOCK_SKEW = datetime.timedelta(hours=1)


@dataclass(frozen=True, slots=True)
class KeyPair:
    """A private key and its certificate, both PEM."""

    key: str
    certificate: str


def new_key() -> ec.EllipticCurvePrivateKey:
    """Return a fresh P-256 key: a hundred times quicker to make than RSA."""
    return ec.generate_private_key(ec.SECP256R1())


def private_pem(key: ec.EllipticCurvePrivateKey) -> str:
    """Return the key as unencrypted PEM."""
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    ).decode()


def public_pem(key: ec.EllipticCurvePrivateKey) -> str:
    """Return the public half as PEM."""
    return (
        key.public_key()
        .public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
        .decode()
    )


class Authority:
    """Signs certificates for servers and clients of one cluster."""

    def __init__(self, common_name: str = "dledger-e2e") -> None:
        self._key = new_key()
        self._name = _name(common_name, None)
        own = self._key.public_key()
        builder = _builder(self._name, self._name, own, own, is_authority=True)
        self._certificate = builder.sign(self._key, hashes.SHA256())

    @property
    def pair(self) -> KeyPair:
        """The authority's own key and certificate."""
        return KeyPair(key=private_pem(self._key), certificate=_pem(self._certificate))

    def issue(
        self, common_name: str, *, organization: str | None = None, hosts: tuple[str, ...] = ()
    ) -> KeyPair:
        """Return a key and a certificate for a client, and for a server when *hosts* are given.

        Args:
            common_name: the user's name to Kubernetes.
            organization: the user's group.
            hosts: DNS names and addresses a server answers to.
        """
        key = new_key()
        subject = _name(common_name, organization)
        builder = _builder(subject, self._name, key.public_key(), self._key.public_key())
        purposes = [ExtendedKeyUsageOID.CLIENT_AUTH]
        if hosts:
            purposes.append(ExtendedKeyUsageOID.SERVER_AUTH)
            names = x509.SubjectAlternativeName([_host(each) for each in hosts])
            builder = builder.add_extension(names, critical=False)
        builder = builder.add_extension(x509.ExtendedKeyUsage(purposes), critical=False)
        certificate = builder.sign(self._key, hashes.SHA256())
        return KeyPair(key=private_pem(key), certificate=_pem(certificate))


def _builder(
    subject: x509.Name,
    issuer: x509.Name,
    key: ec.EllipticCurvePublicKey,
    issuer_key: ec.EllipticCurvePublicKey,
    *,
    is_authority: bool = False,
) -> x509.CertificateBuilder:
    # Python 3.13 refuses chains without the two key identifiers.
    identifier = x509.SubjectKeyIdentifier.from_public_key(key)
    issuer_identifier = x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer_key)
    now = datetime.datetime.now(datetime.UTC)
    basics = x509.BasicConstraints(ca=is_authority, path_length=0 if is_authority else None)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - CLOCK_SKEW)
        .not_valid_after(now + LIFETIME)
        .add_extension(identifier, critical=False)
        .add_extension(issuer_identifier, critical=False)
        .add_extension(basics, critical=True)
        .add_extension(_usage(signs_certificates=is_authority), critical=True)
    )


def _name(common_name: str, organization: str | None) -> x509.Name:
    attributes = [x509.NameAttribute(NameOID.COMMON_NAME, common_name)]
    if organization is not None:
        attributes.append(x509.NameAttribute(NameOID.ORGANIZATION_NAME, organization))
    return x509.Name(attributes)


def _host(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True,
        content_commitment=False,
        key_encipherment=not signs_certificates,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        encipher_only=False,
        decipher_only=False,
    )


def _pem(certificate: x509.Certificate) -> str:
    return certificate.public_bytes(serialization.Encoding.PEM).decode()
