"""What is shown to a member and who is believed: read from a directory, and made into connections.

The directory is a mounted Secret of the operator's: ``ca.crt`` with every trusted authority, a pair
``NAME.crt`` and ``NAME.key``, or else ``tls.crt`` and ``tls.key``, ``mode``, and ``group`` once
certificates without the group are believed no more. Used by nodes, which read it again and again
(`peer_tls`), by the command line and by the pipeline.
"""

from __future__ import annotations

import contextlib
import os
import socket
import ssl
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import grpc

from dledger.common.dns import host_to_ask
from dledger.errors import InvalidArgument

REQUIRED: Final = "required"
BOTH: Final = "both"
"""Modes: peers speak TLS alone; or plain text, too, until the last of them has certificates."""
DIRECTORY_ENV: Final = "DLEDGER_PEER_TLS_DIR"
"""Names the directory for whoever is not told it otherwise."""
_TRUSTED: Final = "ca.crt"
_MODE: Final = "mode"
_GROUP: Final = "group"
NAME_OPTION: Final = "grpc.ssl_target_name_override"
_PROBE_S: Final = 2.0
_NOT_TLS: Final = frozenset({"WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE", "UNKNOWN_PROTOCOL"})


@dataclass(frozen=True, slots=True, kw_only=True)
class MutualTls:
    """What is shown to a member, and how it is known, whatever its address is.

    Attributes:
        name: The member's name, or its host, as its certificate has them; empty: the host that is
            dialled.
        trusted: The authorities that are believed, as PEM; empty: the public ones.
        chain: The certificate to show, as PEM; empty: none, as a client port asks for none.
        key: Its key, as PEM.
    """

    name: str
    trusted: bytes
    chain: bytes
    key: bytes = field(repr=False)

    def credentials(self) -> grpc.ChannelCredentials:
        """Return them for a gRPC channel."""
        return grpc.ssl_channel_credentials(
            self.trusted or None, self.key or None, self.chain or None
        )

    def options(self, chosen: Sequence[tuple[str, Any]]) -> tuple[tuple[str, Any], ...]:
        """Return a gRPC channel's options with the one that pins the member's name."""
        return (*chosen, (NAME_OPTION, self.name)) if self.name else tuple(chosen)


@dataclass(frozen=True, slots=True)
class Pair:
    """A certificate chain and its key, as PEM."""

    chain: bytes
    key: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class Identity:
    """What a caller of members shows, whom it believes, and whether plain text is accepted, too.

    *group* is ``UID/DOMAIN`` of the own one, if certificates without it are believed no more.
    """

    trusted: bytes
    pair: Pair
    mode: str
    group: str = ""

    def to(self, name: str) -> MutualTls:
        """Return it for a call to the member *name*; empty: to the host that is dialled."""
        chain, key = self.pair.chain, self.pair.key
        return MutualTls(name=self.host_of(name), trusted=self.trusted, chain=chain, key=key)

    def host_of(self, name: str) -> str:
        """Return the host by which the group's member *name* is known, in its certificate.

        A name alone may be a member's of another group. It is what is left as long as the group is
        not known, and a host is as it is.
        """
        _, _, domain = self.group.partition("/")
        return f"{name}.{domain}" if domain and name and "." not in name else name

    def way(self, address: str, name: str) -> MutualTls | None:
        """Return how to call ``HOST:PORT``; None: in plain text, as the node there is not yet on.

        Blocks for up to four seconds in the mode `BOTH`, and not otherwise.
        """
        is_plain = self.mode == BOTH and speaks_tls(address) is False
        return None if is_plain else self.to(name)


def identity_of(directory: Path, name: str = "") -> Identity:
    """Return what is in a directory, for the node *name* or, without one, in ``tls.crt``.

    Raises:
        InvalidArgument: Something is missing or wrong in it; says which file.
    """
    try:
        return Identity(
            trusted_of(directory),
            pair_of(directory, name),
            mode_of(directory),
            required_group_of(directory),
        )
    except (OSError, ValueError) as error:
        raise InvalidArgument(f"no certificate for peers: {error}") from error


def identity_from(environ: Mapping[str, str]) -> Identity | None:
    """Return that of the directory in `DIRECTORY_ENV`; None without one. Raises InvalidArgument."""
    directory = environ.get(DIRECTORY_ENV, "")
    return identity_of(Path(directory), environ.get("DLEDGER_NAME", "")) if directory else None


def speaks_tls(address: str) -> bool | None:
    """Whether TLS is spoken at ``HOST:PORT``; None if nobody answers. Blocks; believes nobody.

    Whoever has been told by this that it is not has to accept plain text (`BOTH`): anybody on the
    way can make it answer False.
    """
    host, _, port = address.rpartition(":")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    try:
        there = (host_to_ask(host.strip("[]")), int(port))
        connection = socket.create_connection(there, _PROBE_S)
    except (OSError, ValueError):
        return None
    with connection:
        try:
            context.wrap_socket(connection).close()
        except TimeoutError:
            return None
        except ssl.SSLEOFError:
            return False
        except ssl.SSLError as error:
            return error.reason not in _NOT_TLS
        except OSError:
            return False
    return True


# --- files ------------------------------------------------------------------------------------


def mode_of(directory: Path) -> str:
    """Return the mode; `REQUIRED` without a file. Raises OSError, ValueError (naming the file)."""
    path = directory / _MODE
    try:
        mode = path.read_text("ascii").strip() or REQUIRED
    except FileNotFoundError:
        return REQUIRED
    except UnicodeDecodeError as error:
        raise ValueError(f"cannot read {path}: {error}") from error
    if mode not in (REQUIRED, BOTH):
        raise ValueError(f"{path} is {mode!r}; it is {REQUIRED} or {BOTH}")
    return mode


def required_group_of(directory: Path) -> str:
    """Return whose certificates are believed alone; empty: those without a group are, too.

    Raises:
        OSError: It cannot be read.
        ValueError: It is no text.
    """
    try:
        return (directory / _GROUP).read_text("ascii").strip()
    except FileNotFoundError:
        return ""


def trusted_of(directory: Path) -> bytes:
    """Return the authorities. Raises OSError, ValueError (naming the file)."""
    return read_trusted(directory / _TRUSTED)


def read_trusted(path: Path) -> bytes:
    """Return the authorities in a file. Raises OSError, ValueError (naming the file)."""
    text = path.read_bytes()
    try:
        context_of(ssl.PROTOCOL_TLS_CLIENT, text)
    except (ValueError, ssl.SSLError) as error:
        raise ValueError(f"{path} has no certificates that can be read: {error}") from error
    return text


def pair_of(directory: Path, name: str) -> Pair:
    """Return certificate and key. Raises OSError, ValueError (naming the file)."""
    return read_pair(*_names(directory, name))


def read_pair(of_chain: Path, of_key: Path) -> Pair:
    """Return what is in two files. Raises OSError, ValueError: they are no pair (naming them)."""
    chain, key = of_chain.read_bytes(), of_key.read_bytes()
    try:
        show(ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT), chain, key)
    except (ValueError, ssl.SSLError) as error:
        raise ValueError(f"{of_chain} and {of_key} are not a pair: {error}") from error
    return Pair(chain, key)


def signature_of(directory: Path, name: str) -> object:
    """Return what differs after any of the files was written or replaced."""
    told = directory / _MODE, directory / _GROUP
    return written(directory / _TRUSTED, *_names(directory, name), *told)


def written(*files: Path) -> object:
    """Return what differs after any of these files was written, replaced or deleted."""
    return tuple(map(_stat, files))


def _names(directory: Path, name: str) -> tuple[Path, Path]:
    stem = name if name and (directory / f"{name}.crt").exists() else "tls"
    return directory / f"{stem}.crt", directory / f"{stem}.key"


def _stat(path: Path) -> tuple[str, int, int, int]:
    try:
        found = path.stat()
    except OSError:
        return str(path), 0, 0, 0
    return str(path), found.st_ino, found.st_mtime_ns, found.st_size


# --- Python's ssl -----------------------------------------------------------------------------


def context_of(protocol: int, trusted: bytes) -> ssl.SSLContext:
    """Return a context of TLS 1.3 that believes these authorities. Raises SSLError."""
    context = ssl.SSLContext(protocol)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.load_verify_locations(cadata=trusted.decode("ascii"))
    return context


def show(context: ssl.SSLContext, chain: bytes, key: bytes) -> None:
    """Have a context show a certificate. `ssl` reads files only; these are in memory."""
    with _in_memory(chain) as of_chain, _in_memory(key) as of_key:
        context.load_cert_chain(of_chain, of_key, password=_no_password)


def _no_password() -> bytes:
    raise ValueError("the key is encrypted")


@contextlib.contextmanager
def _in_memory(text: bytes) -> Iterator[str]:
    with os.fdopen(os.memfd_create("certificate", os.MFD_CLOEXEC), "wb") as file:
        file.write(text)
        file.flush()
        yield f"/proc/self/fd/{file.fileno()}"
