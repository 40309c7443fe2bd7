"""Whether the claim of a member is given up, whose disk is gone for good. Pure.

Only then, and only while all other voters stand (`gate`): the member comes back with an empty disk
and takes its own place (`membership.replacement`). The volume is never deleted by that; what
becomes of it is its reclaim policy's matter.
"""

from __future__ import annotations

from dledger_operator.api import names
from dledger_operator.decisions.disruptions import Held, ReplaceClaim
from dledger_operator.decisions.facts import Facts
from dledger_operator.decisions.gate import GiveUp, hold, refused
from dledger_operator.decisions.membership import given_up, lost_disks, out_of_order


def loss_sentence(facts: Facts) -> str:
    """Return whose disks are gone, and why nothing is done about one now; empty if none is."""
    lost = facts.observed.lost
    each = "; ".join(
        f"the disk of {name} is gone: {lost[names.claim_of(name)]}" for name in lost_disks(facts)
    )
    found = lost_disk(facts)
    return f"{each}; not replaced now: {found.why}" if isinstance(found, Held) else each


def lost_disk(facts: Facts) -> ReplaceClaim | Held | None:
    """Return which claim is given up, the first by name; None if none has to be.

    A member that is to leave in any case leaves without another disk.
    """
    lost = [name for name in lost_disks(facts) if name not in facts.leaving]
    if not lost or not facts.group.bootstrapped:
        return None
    name = lost[0]
    found = given_up(facts, name, facts.observed.volumes[names.claim_of(name)])
    if found is None:
        return None
    if facts.voters == 1 and name not in facts.entering:
        return Held(name, "its disk is the group: restore it from a backup, under another name")
    if why := refused(facts, name) or hold(facts, GiveUp(out_of_order(facts))):
        return Held(name, why)
    return found
