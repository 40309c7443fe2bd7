"""Every attack by its name; and the process that makes one."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Final

from e2e.harness.checks import Check
from e2e.hostile import health, memory, neighbours, peers, wire_attacks
from e2e.hostile.scene import Scene

Attack = Callable[[Scene], list[Check]]


@dataclass(frozen=True, slots=True)
class GroupAttack:
    """One attack: what it is, what it kills itself, and whether the group grows by promise."""

    attack: Attack
    kills: int = 0

    @property
    def what(self) -> str:
        """What it does, in a sentence."""
        return (self.attack.__doc__ or "").partition("\n")[0]


ATTACKS: Final[dict[str, GroupAttack]] = {
    "a01": GroupAttack(wire_attacks.gzip_bombs),
    "a02": GroupAttack(memory.bodies_that_never_come),
    "a02f": GroupAttack(memory.bodies_that_never_come_at_a_follower),
    "a03": GroupAttack(neighbours.dedupe_poison),
    "a04": GroupAttack(neighbours.poison_messages),
    "a05": GroupAttack(peers.term_bombs),
    "a06": GroupAttack(peers.route_poison),
    "a07": GroupAttack(peers.forged_entries),
    "a08": GroupAttack(peers.replication_frames),
    "a08b": GroupAttack(peers.frame_buffers),
    "a09": GroupAttack(peers.silent_connections, kills=1),
    "a10": GroupAttack(health.idle_requests),
    "a10m": GroupAttack(health.scrapers),
    "a11": GroupAttack(peers.idle_connections),
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
}
"""Those that are made on a running group."""


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
