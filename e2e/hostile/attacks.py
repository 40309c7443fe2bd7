"""Every attack by its name; and the process that makes one."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Final

from e2e.harness.checks import Line
from e2e.hostile import health, memory, neighbours, peers, wire_attacks
from e2e.hostile.scene import Scene

Attack = Callable[[Scene], list[Line]]


@dataclass(frozen=True, slots=True)
class Entry:
    """One attack: what it is, what it kills itself, and whether the group grows by promise."""

    attack: Attack
    kills: int = 0

    @property
    def what(self) -> str:
        """What it does, in a sentence."""
        return (self.attack.__doc__ or "").partition("\n")[0]


ATTACKS: Final[dict[str, Entry]] = {
    "a01": Entry(wire_attacks.gzip_bombs),
    "a02": Entry(memory.bodies_that_never_come),
    "a02f": Entry(memory.bodies_that_never_come_at_a_follower),
    "a03": Entry(neighbours.dedupe_poison),
    "a04": Entry(neighbours.poison_messages),
    "a05": Entry(peers.term_bombs),
    "a06": Entry(peers.route_poison),
    "a07": Entry(peers.forged_entries),
    "a08": Entry(peers.replication_frames),
    "a08b": Entry(peers.frame_buffers),
    "a09": Entry(peers.silent_strangers, kills=1),
    "a10": Entry(health.idle_requests),
    "a10m": Entry(health.scrapers),
    "a11": Entry(peers.idle_connections),
    "a12": Entry(wire_attacks.protobuf_bombs),
    "a12b": Entry(wire_attacks.sustained),
    "a13p": Entry(memory.padded_polls),
    "a13r": Entry(memory.silent_readers),
    "a13b": Entry(memory.batches_without_end),
    "a13i": Entry(memory.client_ids),
    "a15": Entry(neighbours.topics_without_end),
    "a16": Entry(neighbours.forged_receipts),
    "a17": Entry(wire_attacks.http2),
    "a20": Entry(neighbours.ids_pushed_out),
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
