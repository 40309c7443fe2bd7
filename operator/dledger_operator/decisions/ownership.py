"""Which of several operators that see a group acts on it: the one whose mark it carries. Pure.

A mark is namespace and name of an operator's Lease, which the chart names after its release, so
that all processes of one release have the same. It is `status.operator`, or what the annotation on
the group names instead. Nothing else moves a group to another operator: see docs/adr/0063.
"""

from __future__ import annotations

from enum import Enum, auto
from typing import Final

from dledger_operator.api import names
from dledger_operator.api.spec import BrokerGroup

HANDOVER_S: Final = 15.0
"""Who takes a group over from another operator does nothing to it for so long: the other one may be
in the middle of a round, and lets go when its watch tells it."""


class Standing(Enum):
    """How an operator stands to a group that it sees."""

    OURS = auto()
    UNCLAIMED = auto()
    HANDED_TO_US = auto()
    ELSEWHERE = auto()


def standing(group: BrokerGroup, mark: str) -> Standing:
    """Return how the operator with this *mark* stands to *group*; without a mark all are its own.

    What the annotation says counts; without it, who marked the group first.
    """
    recorded = group.operator
    if not mark or recorded == mark == (group.handed_to or mark):
        return Standing.OURS
    if group.handed_to not in ("", mark):
        return Standing.ELSEWHERE
    if not recorded:
        return Standing.UNCLAIMED
    return Standing.HANDED_TO_US if group.handed_to else Standing.ELSEWHERE


def elsewhere_sentence(group: BrokerGroup, mark: str) -> str:
    """Return whom the operator with this *mark* leaves a group to, and what moves it."""
    key, name = names.OPERATOR_ANNOTATION, group.name
    if group.handed_to:
        said = f"operator {mark} leaves it to {group.handed_to}, which the annotation {key} names"
        if group.operator != group.handed_to:
            said += ", and which has not taken it yet"
        return said
    return (
        f"operator {mark} leaves it to {group.operator}, whose mark status.operator is; if that "
        f"one is gone, or is to let go of it: kubectl annotate bg {name} -n {group.namespace} "
        f"{key}={mark} --overwrite"
    )


def unmarked_sentence(mark: str) -> str:
    """Return that somebody took the mark of this operator away, which it wrote once more."""
    return (
        f"the mark of operator {mark} was taken off status.operator: somebody else writes the "
        "group's status, such as an operator from before there were marks, and then both act on "
        "it; uninstall that one, or upgrade it"
    )
