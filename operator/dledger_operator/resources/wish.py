"""What of a spec needs new pods, as one hash that each pod carries. Pure.

A pod is of an older template if its hash is another than the spec's now. What an operator makes of
the same spec is not in it, so that a newer operator restarts nothing; nor is what nodes take over
while they run. A field at its default is left out: one that a later version adds changes no hash.
"""

from __future__ import annotations

from dataclasses import asdict, fields
from typing import Any, Final

from dledger_operator.api.spec import BrokerGroup, Spec, Tls
from dledger_operator.resources.common import digest

RESTARTING: Final = frozenset(
    {
        *("durability", "resources", "affinity", "topology_spread_constraints", "tolerations"),
        *("node_selector", "priority_class_name", "pod_labels", "pod_annotations"),
        *("service_account_name", "image_pull_secrets", "security_context", "tls"),
    }
)
"""Fields of the spec that a running pod cannot take over; besides them, its image, whether
certificates for its peers are mounted into it, and what serves its clients' ports, in how many
processes."""
_DEFAULTS: Final = Spec()


def wish(group: BrokerGroup) -> str:
    """Return the hash of what the pods of *group* are made from."""
    asked: dict[str, Any] = {"image": group.image}
    if group.has_peer_tls:
        asked["has_peer_tls"] = True
    if group.client_server:
        asked["client_server"] = group.client_server
    if group.door_processes:
        asked["door_processes"] = group.door_processes
    for one in fields(Spec):
        value = getattr(group.spec, one.name)
        if one.name in RESTARTING and value != getattr(_DEFAULTS, one.name):
            asked[one.name] = asdict(value) if isinstance(value, Tls) else value
    return digest(asked)
