"""Every attack by its name; and the process that makes one."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, Final

from e2e.harness.checks import Check
from e2e.hostile import (
    conversations,
    crowds,
    health,
    memory,
    neighbours,
    peers,
    rates,
    rooms,
    wire_attacks,
)
from e2e.hostile.scene import Scene
from e2e.hostile.ways import ALL, ONE, PLAIN, TLS

Attack = Callable[[Scene], list[Check]]


@dataclass(frozen=True, slots=True)
class GroupAttack:
    """One attack: what it is, and what a run of it needs.

    Attributes:
        attack: Makes it.
        ways: How it may come.
        seconds: How long it lasts, about.
        kills: Nodes that it kills itself.
        connections: What a node has of it at most; over TLS each may cost something.
        files: What the nodes may open; 0: as many as this process.
        is_crowd: Whether nobody attacks: those who come want what the victim wants.
    """

    attack: Attack
    ways: tuple[str, ...] = ONE
    seconds: float = 8.0
    kills: int = 0
    connections: int = 0
    files: int = 0
    is_crowd: bool = False

    @property
    def what(self) -> str:
        """What it does, in a sentence."""
        return (self.attack.__doc__ or "").partition("\n")[0]


_PEERS: Final = (PLAIN,)
"""What is not at the clients' ports comes in one way."""
_LONG_S: Final = 20.0
_FILES: Final = 1_024


def _long(attack: Attack, ways: tuple[str, ...] = ALL, **more: Any) -> GroupAttack:
    return GroupAttack(attack, ways, _LONG_S, **more)


ATTACKS: Final[dict[str, GroupAttack]] = {
    "a01": GroupAttack(wire_attacks.gzip_bombs),
    "a02": GroupAttack(memory.bodies_that_never_come),
    "a02f": GroupAttack(memory.bodies_that_never_come_at_a_follower),
    "a03": GroupAttack(neighbours.dedupe_poison),
    "a04": GroupAttack(neighbours.poison_messages),
    "a05": GroupAttack(peers.term_bombs, _PEERS),
    "a06": GroupAttack(peers.route_poison, _PEERS),
    "a07": GroupAttack(peers.forged_entries, _PEERS),
    "a08": GroupAttack(peers.replication_frames, _PEERS),
    "a08b": GroupAttack(peers.frame_buffers, _PEERS),
    "a09": GroupAttack(peers.silent_connections, _PEERS, kills=1),
    "a10": GroupAttack(health.idle_requests, _PEERS),
    "a10m": GroupAttack(health.scrapers, _PEERS),
    "a11": GroupAttack(peers.idle_connections, _PEERS),
    "a12": GroupAttack(wire_attacks.protobuf_bombs),
    "a12b": GroupAttack(wire_attacks.sustained),
    "a13p": GroupAttack(memory.padded_polls),
    "a13r": GroupAttack(memory.silent_readers),
    "a13b": GroupAttack(memory.batches_without_end),
    "a13i": GroupAttack(memory.client_ids),
    "a15": GroupAttack(neighbours.topics_without_end),
    "a16": GroupAttack(neighbours.forged_receipts),
    "a17": GroupAttack(wire_attacks.http2),
    "a20": GroupAttack(neighbours.ids_pushed_out),
    "b00": _long(rates.busy, ONE),
    "b01": _long(rooms.header_memory, connections=rooms.HEADER_CONNECTIONS),
    "b02": _long(rooms.all_calls, connections=rooms.CALL_CONNECTIONS),
    "b03": _long(rooms.held_bytes, connections=rooms.BYTE_CONNECTIONS),
    "b04": _long(rooms.filled_connections, connections=rooms.FILLED_CONNECTIONS),
    "b04w": _long(rooms.used_connections, connections=rooms.FILLED_CONNECTIONS),
    "b04h": _long(rates.hellos, TLS),
    "b06": _long(rates.refused_calls),
    "b06c": _long(rates.connections),
    "b06f": _long(rates.empty_frames),
    "b10": _long(rooms.all_connections, connections=rooms.IDLE_CONNECTIONS, files=_FILES),
    "b11": GroupAttack(neighbours.encodings),
    "b11g": _long(rates.packed_bodies),
    "b12t": _long(rooms.telemetry_streams, connections=rooms.TELEMETRY_CONNECTIONS),
    "b12p": _long(rooms.waiting_polls, connections=rooms.POLL_CONNECTIONS),
    "b12k": _long(rooms.polls_at_a_failover, connections=rooms.FOLLOWER_CONNECTIONS, kills=1),
    "b13": GroupAttack(conversations.wrong_conversations),
    "c01": _long(crowds.behind_one_address, ONE, connections=crowds.CLIENTS, is_crowd=True),
    "c02": _long(crowds.after_a_failover, ONE, connections=crowds.POLLERS, kills=1, is_crowd=True),
}
"""Those that are made on a running group: found first (a), by address (b), honest crowds (c)."""


def main() -> int:
    """Make one attack; print its lines as JSON."""
    parser = argparse.ArgumentParser(prog="python -m e2e.hostile.attacks", description=__doc__)
    parser.add_argument("name", choices=ATTACKS)
    parser.add_argument("scene")
    args = parser.parse_args()
    lines = ATTACKS[args.name].attack(Scene.decode(args.scene))
    print(json.dumps([asdict(line) for line in lines]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
