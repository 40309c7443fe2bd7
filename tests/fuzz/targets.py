"""Every decoder of outside bytes, by the name that ``--target`` takes."""

from __future__ import annotations

from typing import Final

from tests.fuzz import (
    archives,
    clients,
    disks,
    door_links,
    doors,
    http2,
    logs,
    operators,
    packed,
    peers,
    settings,
    spools,
    tls_ports,
)
from tests.fuzz.target import Target

_CLASSES: Final[tuple[type[Target], ...]] = (
    *(logs.Batches, logs.Entries),
    *(peers.Frames, peers.PeerEntries, peers.Framing, peers.Handshakes),
    *(peers.ClientAddresses, peers.ConnectTokens),
    *(clients.Sends, clients.Appends, clients.Receives, clients.Confirmations, clients.Receipts),
    clients.Recalls,
    clients.Transactions,
    *(clients.Telemetry, clients.Filters, clients.Expressions, clients.Headers),
    *(disks.States, disks.Snapshots, disks.Memberships, disks.StateFiles, disks.JsonFiles),
    *(disks.Segments, spools.SpoolFiles, spools.SpoolMessages),
    *(archives.Manifests, archives.ArchiveObjects, archives.Exports),
    *(archives.Places, archives.PlacesObjects),
    *(archives.ArchivedMessages, archives.Records),
    *(operators.GroupSpecs, operators.BackupSpecs, operators.JobWords, operators.NodeWords),
    *(operators.OperatorOptions, settings.NodeSettings, settings.Http, doors.Doors),
    *(doors.NativeDoors, doors.LinkedDoors, http2.Http2, tls_ports.TlsPorts),
    *(packed.PackedBodies, packed.KeptHeaders),
    *(door_links.DoorLinks, door_links.RelayLinks),
)
TARGETS: Final[dict[str, type[Target]]] = {each.name: each for each in _CLASSES}
