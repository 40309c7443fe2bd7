"""TLS to the group: what is believed and shown, read from files whenever a connection begins.

A connection that fails is left for a new one (`upstream`), and so files that were replaced count as
soon as the former ones do not hold any longer. Built by `child` and `draining`.
"""

from __future__ import annotations

import argparse
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from dledger.errors import InvalidArgument
from dledger.rpc.mutual_tls import MutualTls, Pair, read_pair, read_trusted, written
from dledger.sidecar.upstream import Tls

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsFiles:
    """Where it is.

    Attributes:
        authorities: What is believed; None: the public ones.
        pair: A chain to show and its key; empty: none.
        name: What the group's certificate names; empty: the host that is dialled.
    """

    authorities: Path | None = None
    pair: tuple[Path, Path] | tuple[()] = ()
    name: str = ""

    def read(self) -> MutualTls:
        """Return what is in the files. Raises InvalidArgument, naming the one at fault."""
        try:
            trusted = b"" if self.authorities is None else read_trusted(self.authorities)
            pair = read_pair(*self.pair) if self.pair else Pair(b"", b"")
        except (OSError, ValueError) as error:
            raise InvalidArgument(f"TLS to the group: {error}") from error
        return MutualTls(name=self.name, trusted=trusted, chain=pair.chain, key=pair.key)

    def all(self) -> Sequence[Path]:
        """Return all of them."""
        return [*([] if self.authorities is None else [self.authorities]), *self.pair]


class Reloading:
    """What is in the files now, or was when they could be read last.

    Raises:
        InvalidArgument: They cannot be read at the start.
    """

    def __init__(self, files: TlsFiles) -> None:
        self._files = files
        self._seen = written(*files.all())
        self._now = files.read()

    def __call__(self) -> MutualTls:
        """Return it; files that are half replaced are looked at again for the next connection."""
        seen = written(*self._files.all())
        if seen != self._seen:
            try:
                self._now, self._seen = self._files.read(), seen
                _log.info("TLS to the group: the files were replaced, and are used from now on")
            except InvalidArgument as error:
                _log.warning("%s; the former ones are used", error)
        return self._now


def upstream_tls(args: argparse.Namespace) -> Tls:
    """Return what the options say. Raises InvalidArgument."""
    pair = args.upstream_cert_file, args.upstream_key_file
    others = (args.upstream_ca_file, *pair, args.upstream_name)
    if not args.upstream_tls:
        if any(others):
            raise InvalidArgument("--upstream-ca-file and the like go with --upstream-tls")
        return lambda: None
    if any(pair) and not all(pair):
        raise InvalidArgument("--upstream-cert-file and --upstream-key-file go together")
    return Reloading(
        TlsFiles(
            authorities=Path(args.upstream_ca_file) if args.upstream_ca_file else None,
            pair=(Path(pair[0]), Path(pair[1])) if all(pair) else (),
            name=args.upstream_name or "",
        )
    )
