"""Every decoder of outside bytes, by the name that ``--target`` takes."""

from __future__ import annotations

from typing import Final

from tests.fuzz import clients, disks, logs, peers, spools
from tests.fuzz.target import Target

_CLASSES: Final[tuple[type[Target], ...]] = (
    *(logs.Batches, logs.Entries),
    *(peers.Frames, peers.PeerEntries, peers.Framing, peers.Greetings, peers.Tickets),
    *(clients.Sends, clients.Appends, clients.Receives, clients.Confirmations, clients.Receipts),
    *(clients.Telemetry, clients.Filters, clients.Headers),
    *(disks.States, disks.Snapshots, disks.Memberships, disks.StateFiles, disks.JsonFiles),
    *(disks.Segments, spools.SpoolFiles, spools.SpoolMessages),
)
TARGETS: Final[dict[str, type[Target]]] = {each.name: each for each in _CLASSES}
