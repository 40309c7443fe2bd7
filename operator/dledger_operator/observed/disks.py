"""Whether the disk under a claim is gone for good, by what Kubernetes has of it. Pure.

A volume that is tied to machines by their host name (a local disk) is gone with the last of them: a
Node that was deleted, or has the taint ``node.kubernetes.io/out-of-service``, by which somebody
says that it will not come back. A volume that is tied to a zone outlives every machine in it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from dledger_operator.api import names
from dledger_operator.api.spec import Json
from dledger_operator.observed.observed import Volume

OUT_OF_SERVICE: Final = "node.kubernetes.io/out-of-service"


def claim_lost(claim: Volume) -> str:
    """Return that a claim lost its volume, by its own word; empty if it did not."""
    if claim.phase != "Lost":
        return ""
    return f"volume {claim.volume or '(unknown)'} does not exist any more"


def machines_of(volume: Json) -> tuple[str, ...]:
    """Return the host names of the only machines that reach a volume; empty if others may."""
    required = (volume.get("spec") or {}).get("nodeAffinity", {}).get("required") or {}
    found: list[str] = []
    for term in required.get("nodeSelectorTerms") or ():
        hosts = [
            value
            for row in term.get("matchExpressions") or ()
            if (row["key"], row["operator"]) == (names.HOST_LABEL, "In")
            for value in row["values"]
        ]
        if not hosts:
            return ()
        found += hosts
    return tuple(dict.fromkeys(found))


def volume_lost(name: str, volume: Json | None, machines: Mapping[str, Sequence[Json]]) -> str:
    """Return why a volume is gone for good; empty if it may come back.

    Args:
        name: Of the volume.
        volume: The PersistentVolume; None if there is none of that name.
        machines: The Nodes that carry each host name that it is tied to.
    """
    if volume is None:
        return f"volume {name} does not exist any more"
    phase = (volume.get("status") or {}).get("phase")
    if phase == "Failed":
        return f"volume {name} failed"
    if not machines or any(_serves(node) for nodes in machines.values() for node in nodes):
        return ""
    is_there = any(machines.values())
    gone = f"out of service (taint {OUT_OF_SERVICE})" if is_there else "not in the cluster any more"
    return f"volume {name} is on machine {', '.join(machines)}, which is {gone}"


def _serves(node: Json) -> bool:
    taints = (node.get("spec") or {}).get("taints") or ()
    return all(taint["key"] != OUT_OF_SERVICE for taint in taints)
