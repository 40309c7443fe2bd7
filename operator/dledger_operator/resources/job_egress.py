"""Whom the pods of Jobs may reach, as rules of NetworkPolicies (docs/adr/0059). Pure.

A policy knows addresses, ports and labels, and a store has a name: so a store is its port, or the
namespace that its name is of. Used by `networkpolicy`.
"""

from __future__ import annotations

import ipaddress
from typing import Any, Final
from urllib.parse import urlsplit

from dledger_operator.api.spec import Manifest, Store

DNS_PORTS: Final = (53, 5353)
"""The second is where OpenShift's DNS pods listen, behind the first."""
_API_PORTS: Final = (443, 6443)
"""Of the API server: what its Service has, and what kubeadm has behind it."""
_HTTP: Final = 80
"""Where clouds tell every pod of a machine what the machine may: nobody else's store is there."""
_METADATA: Final = ("169.254.0.0/16", "168.63.129.16/32")
_METADATA_V6: Final = ("fe80::/10", "fd00:ec2::/32")
_ROLES: Final = ("169.254.169.254/32", "169.254.170.23/32")
"""Where a pod without keys gets those of a role: of its machine, or by Amazon's agent for pods."""
_NAMESPACE: Final = "kubernetes.io/metadata.name"


def dns_rule() -> Manifest:
    """Return the rule for names."""
    return {"ports": [*port_list("UDP", *DNS_PORTS), *port_list("TCP", *DNS_PORTS)]}


def api_rule() -> Manifest:
    """Return the rule for the API server, whose address no policy can name."""
    return {"ports": port_list("TCP", *_API_PORTS)}


def store_rules(store: Store) -> list[Manifest]:
    """Return the rules for a store; none for one on a claim, or for one that is not named."""
    if not store.url.startswith("s3://"):
        return []
    parts = urlsplit(store.endpoint or "https://s3.amazonaws.com")
    port = parts.port or (_HTTP if parts.scheme == "http" else 443)
    rules = _host_rules(parts.hostname or "", port)
    if not store.secret_name:
        to = [{"ipBlock": {"cidr": cidr}} for cidr in _ROLES]
        rules.append({"ports": port_list("TCP", _HTTP), "to": to})
    return rules


def port_list(protocol: str, *numbers: int) -> list[dict[str, Any]]:
    """Return ports as a rule has them."""
    return [{"port": number, "protocol": protocol} for number in numbers]


def _host_rules(host: str, port: int) -> list[Manifest]:
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return _named_rules(host, port)
    if address.is_link_local:
        return []
    to = [{"ipBlock": {"cidr": f"{address}/{address.max_prefixlen}"}}]
    return [{"ports": port_list("TCP", port), "to": to}]


def _named_rules(host: str, port: int) -> list[Manifest]:
    """Return the rules for a name: of a Service, by its namespace, since pods have other ports."""
    service, *more = host.rstrip(".").split(".")
    if service and not more:
        return [{"to": [{"podSelector": {}}]}]
    rules: list[Manifest] = []
    if len(more) == 1 or more[1] == "svc":
        labels = {"matchLabels": {_NAMESPACE: more[0]}}
        rules.append({"to": [{"namespaceSelector": labels}]})
    if len(more) == 1 or more[1] != "svc":
        rules.append(_anywhere(port))
    return rules


def _anywhere(port: int) -> Manifest:
    """Return the rule for all addresses: not those of a cloud's metadata."""
    rule: Manifest = {"ports": port_list("TCP", port)}
    if port == _HTTP:
        blocks = (("0.0.0.0/0", _METADATA), ("::/0", _METADATA_V6))
        rule["to"] = [{"ipBlock": {"cidr": cidr, "except": [*but]}} for cidr, but in blocks]
    return rule
