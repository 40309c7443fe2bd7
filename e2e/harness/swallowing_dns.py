"""Runs a program where DNS is a cluster's whose forwarder swallows: in a network of its own.

    python -m e2e.harness.swallowing_dns CMD...

There, as in a pod of the namespace ``ns``, ``orders``, ``orders-0.orders-nodes.ns.svc`` and all
else of the cluster whose name has no ``absent`` in it is 127.0.0.1 (no IPv6 address); what is
absent is refused at once, and what is not the cluster's is never answered. Needs root, and Linux.
"""

from __future__ import annotations

import os
import socket
import struct
import subprocess
import sys
import tempfile
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Final

ANSWERS_ENV: Final = "DNS_BEYOND_ANSWERS"
"""If it is set, what is not the cluster's is refused at once: the same without the silence."""
_INSIDE: Final = "--inside"
_DOMAIN: Final = ".cluster.local"
_ADDRESS: Final = bytes((127, 0, 0, 1))
_A: Final = 1
_NO_ERROR: Final = 0x8400
_NO_SUCH_NAME: Final = 0x8403
RESOLV_CONF: Final = """\
search ns.svc.cluster.local svc.cluster.local cluster.local
nameserver 127.0.0.1
options ndots:5
"""
"""As the kubelet writes it for a pod."""


def inside(*command: str) -> tuple[str, ...]:
    """Return the command that runs *command* there."""
    return (sys.executable, "-m", "e2e.harness.swallowing_dns", *command)


def answer(query: bytes) -> bytes | None:
    """Return the response to a DNS query; None: there is none, ever."""
    labels, at = [], 12
    while length := query[at]:
        labels.append(query[at + 1 : at + 1 + length].decode("ascii").lower())
        at += 1 + length
    question = query[12 : at + 5]
    (kind,) = struct.unpack_from(">H", query, at + 1)
    name = ".".join(labels)
    if not f".{name}".endswith(_DOMAIN) and not os.environ.get(ANSWERS_ENV):
        return None
    found = _is_there(name)
    has_address = found and kind == _A
    flags = _NO_ERROR if found else _NO_SUCH_NAME
    head = query[:2] + struct.pack(">HHHHH", flags, 1, int(has_address), 0, 0)
    record = b"\xc0\x0c" + struct.pack(">HHIH", _A, 1, 5, len(_ADDRESS)) + _ADDRESS
    return head + question + (record if has_address else b"")


def _is_there(name: str) -> bool:
    """Say whether it is a Service's or a pod's in ``ns``, and not one from the search list."""
    below = name.removesuffix(".ns.svc.cluster.local")
    return below != name and "svc" not in below.split(".") and "absent" not in below


def _serve(at: socket.socket) -> None:
    while True:
        query, asker = at.recvfrom(4096)
        response = answer(query)
        if response is not None:
            at.sendto(response, asker)


def _run_inside(command: Sequence[str]) -> int:
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    # As a pod has: Rust's client makes its messages' ids of a MAC address, and dies without one.
    subprocess.run(
        ["ip", "link", "add", "eth0", "type", "veth", "peer", "name", "eth1"], check=True
    )
    with tempfile.TemporaryDirectory() as directory:
        # As a pod's, which names itself: else a client that looks for its own host asks beyond.
        hosts = f"127.0.0.1 localhost {socket.gethostname()}\n"
        for name, text in (("resolv.conf", RESOLV_CONF), ("hosts", hosts)):
            file = Path(directory) / name
            file.write_text(text, "ascii")
            subprocess.run(["mount", "--bind", str(file), f"/etc/{name}"], check=True)
        at = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        at.bind(("127.0.0.1", 53))
        threading.Thread(target=_serve, args=(at,), daemon=True).start()
        try:
            return subprocess.run(command, check=False).returncode
        finally:
            subprocess.run(["umount", "/etc/resolv.conf", "/etc/hosts"], check=False)


def main(argv: Sequence[str]) -> int:
    """Run the command line."""
    if not argv:
        print(__doc__, file=sys.stderr)
        return 2
    if argv[0] == _INSIDE:
        return _run_inside(argv[1:])
    own = ("unshare", "--mount", "--net", *inside(_INSIDE))
    return subprocess.run([*own, *argv], check=False).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
