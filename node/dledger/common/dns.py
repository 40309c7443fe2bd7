"""How names become addresses in our processes, so that a DNS which does not answer costs nothing.

The search list of a pod makes a name of every name and each of its domains, and at last the bare
name, which the cluster's DNS forwards to whatever is beyond. Where nobody answers there, that
takes 2 to 10 s: gRPC's own resolver comes as far as that for each name without an IPv6 address, so
for every one in a cluster, and the system's for each name that does not exist yet (ADR 65). Both
are seen to here: importing the package `dledger` has gRPC ask the system, and what dials asks for
whole names, which have no search list.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Final

VARIABLE: Final = "GRPC_DNS_RESOLVER"
OF_THE_SYSTEM: Final = "native"
_RESOLV_CONF: Final = Path("/etc/resolv.conf")
_OF_SERVICES: Final = "svc."


def choose_resolver() -> None:
    """Have gRPC ask the system's resolver, unless the environment names another.

    gRPC reads the variable once, when it is imported: whoever did that before us has chosen.
    """
    if "grpc" not in sys.modules:
        os.environ.setdefault(VARIABLE, OF_THE_SYSTEM)


def search_list(resolv_conf: str) -> tuple[str, ...]:
    """Return the domains that a resolv.conf has names tried in; of several lines, the last's."""
    lines = [line.split() for line in resolv_conf.splitlines()]
    found = [tuple(words[1:]) for words in lines if words and words[0] == "search"]
    return found[-1] if found else ()


def whole(host: str, search: Sequence[str]) -> str:
    """Return the whole name, with a dot at its end, of a host in this cluster; else *host*.

    A name of the cluster's ends in ``.svc``, with or without the cluster's domain, which is that of
    the entry ``svc.DOMAIN`` of the search list. Any other name is left to that list.
    """
    for each in search:
        if not each.startswith(_OF_SERVICES):
            continue
        domain = each.rstrip(".")
        if host.endswith(f".{domain}"):
            return f"{host}."
        if host.endswith(".svc"):
            return f"{host.removesuffix('svc')}{domain}."
    return host


def host_to_ask(host: str) -> str:
    """Return what to ask the system for, so that it finds *host*, or nothing, at once."""
    return whole(host, _search_list())


def address_to_ask(address: str) -> str:
    """Return ``HOST:PORT`` with the host as `host_to_ask` has it."""
    host, colon, port = address.rpartition(":")
    return f"{host_to_ask(host)}{colon}{port}"


@cache
def _search_list() -> tuple[str, ...]:
    """Return that of this machine; a pod's stays the same for as long as it lives."""
    try:
        return search_list(_RESOLV_CONF.read_text("utf-8", errors="replace"))
    except OSError:
        return ()
