"""TLS for a port: each handshake takes the context of now, so a certificate can be replaced."""

from __future__ import annotations

import os
import ssl
from pathlib import Path

ALPN = "h2"


class TlsCertificate:
    """What a port shows its clients from now on; connections that are open keep what they saw.

    Args:
        chain: The certificate and those above it, PEM; empty: there is none yet.
        key: Its key, PEM, without a password.

    Attributes:
        chain: The present one; empty before there is one.
        key: The same.

    Raises:
        ssl.SSLError: The two are not a pair.
    """

    def __init__(self, chain: bytes = b"", key: bytes = b"") -> None:
        self.chain, self.key = chain, key
        self._context = _context(chain, key) if chain else None

    @classmethod
    def of_files(cls, chain: Path, key: Path) -> TlsCertificate:
        """Return what two files hold. Raises OSError, of which SSLError is one."""
        return cls(chain.read_bytes(), key.read_bytes())

    @property
    def context(self) -> ssl.SSLContext:
        """What the next handshake uses. Raises OSError: there is no certificate yet."""
        self.refresh()
        if self._context is None:
            raise ConnectionRefusedError("the port has no certificate yet")
        return self._context

    def refresh(self) -> None:
        """Look for another one, if it comes from somewhere."""

    def replace(self, chain: bytes, key: bytes) -> None:
        """Show another one. Raises ssl.SSLError, and then goes on with the last one."""
        self._context = _context(chain, key)
        self.chain, self.key = chain, key


def _context(chain: bytes, key: bytes) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2  # RFC 9113, 9.2
    context.options |= ssl.OP_NO_COMPRESSION | ssl.OP_NO_RENEGOTIATION  # as 9.2.1 has it
    context.set_alpn_protocols([ALPN])
    # `ssl` reads certificates from files alone, and a key should not go to a disk for that.
    file = os.memfd_create("certificate", os.MFD_CLOEXEC)
    try:
        os.write(file, key.rstrip() + b"\n" + chain)
        context.load_cert_chain(f"/proc/self/fd/{file}")
    finally:
        os.close(file)
    return context
