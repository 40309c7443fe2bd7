"""The certificates of a cluster."""

from __future__ import annotations

import ssl
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.x509.oid import ExtensionOID, NameOID

from e2e.cluster import pki


@pytest.fixture(scope="module")
def authority() -> pki.Authority:
    """One authority for all tests."""
    return pki.Authority()


def test_name_and_group_are_what_kubernetes_reads(authority: pki.Authority) -> None:
    """CN is the user, O the group."""
    pair = authority.issue("system:node:a", organization="system:nodes")
    subject = x509.load_pem_x509_certificate(pair.certificate.encode()).subject

    assert subject.get_attributes_for_oid(NameOID.COMMON_NAME)[0].value == "system:node:a"
    assert subject.get_attributes_for_oid(NameOID.ORGANIZATION_NAME)[0].value == "system:nodes"


def test_a_server_answers_to_its_addresses_and_names(authority: pki.Authority) -> None:
    """Addresses as addresses: a client that dials one does not look at DNS names."""
    pair = authority.issue("server", hosts=("10.0.0.1", "kubernetes.default"))
    certificate = x509.load_pem_x509_certificate(pair.certificate.encode())
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value

    assert [str(each) for each in names.get_values_for_type(x509.IPAddress)] == ["10.0.0.1"]
    assert names.get_values_for_type(x509.DNSName) == ["kubernetes.default"]


def test_a_strict_client_accepts_the_chain(authority: pki.Authority) -> None:
    """Python 3.13 checks strictly: both key identifiers must be there."""
    for pem in (authority.pair.certificate, authority.issue("a", hosts=("a",)).certificate):
        extensions = x509.load_pem_x509_certificate(pem.encode()).extensions
        present = {each.oid for each in extensions}
        assert ExtensionOID.SUBJECT_KEY_IDENTIFIER in present
        assert ExtensionOID.AUTHORITY_KEY_IDENTIFIER in present


def test_key_and_certificate_belong_together(authority: pki.Authority, tmp_path: Path) -> None:
    """OpenSSL refuses a pair that does not match."""
    pair = authority.issue("a")
    (tmp_path / "key").write_text(pair.key)
    (tmp_path / "crt").write_text(pair.certificate)

    ssl.create_default_context().load_cert_chain(tmp_path / "crt", tmp_path / "key")
