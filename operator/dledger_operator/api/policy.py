"""What the installation of the operator allows BrokerGroups to ask for. Pure.

A BrokerGroup makes pods, so without a policy the right to create one would be the right to create
any pod: of any image and priority, as root. The chart's values set it and `options` parses it; what
a group asks for beyond it is refused by the condition SpecValid (`NotAllowed`), in `checks`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

ANY: Final = "*"
"""In a list of what is allowed, everything is; in a list of what is denied, everything is."""
ENFORCED: Final = "enforced"
OVERRIDABLE: Final = "overridable"
DENIED_POD_METADATA: Final = (
    "container.apparmor.security.beta.kubernetes.io/",
    "seccomp.security.alpha.kubernetes.io/",
    "k8s.v1.cni.cncf.io/",
    "v1.multus-cni.io/",
    "cni.projectcalico.org/",
    "k8s.ovn.org/",
    "ovn.kubernetes.io/",
    "iam.amazonaws.com/",
    "azure.workload.identity/",
    "vault.hashicorp.com/",
    "sidecar.istio.io/",
    "inject.istio.io/",
    "proxy.istio.io/",
    "config.linkerd.io/",
    "linkerd.io/",
)
"""Prefixes of labels and annotations that give a pod what its spec does not ask for: another
network, a looser profile, a cloud role, containers and volumes that a webhook adds. A list of known
ones, not a complete one."""

_CONTROL_PLANE: Final = ("node-role.kubernetes.io/control-plane", "node-role.kubernetes.io/master")


@dataclass(frozen=True, slots=True, kw_only=True)
class RoleRef:
    """The Role or ClusterRole with the rights of a Spark driver: its kind and name."""

    kind: str = "ClusterRole"
    name: str = "dledger-operator-drivers"


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """What is allowed.

    Attributes:
        allowed_images: Of nodes and Jobs. One that ends with ``/`` allows everything below it, any
            other one repository with every tag and digest, or one very image.
        allowed_priority_classes: Names; pods without one are always allowed.
        denied_pod_metadata: Prefixes of keys that labels and annotations of pods may not have.
        pod_security: ``enforced``: nothing of the restricted pod is loosened; ``overridable``: the
            spec's securityContext, tolerations and ServiceAccount are taken as they are.
        driver_role: What drivers of Spark are bound to.
    """

    allowed_images: tuple[str, ...] = ()
    allowed_priority_classes: tuple[str, ...] = ()
    denied_pod_metadata: tuple[str, ...] = DENIED_POD_METADATA
    pod_security: str = ENFORCED
    driver_role: RoleRef = RoleRef()

    def allows_image(self, image: str) -> bool:
        """Whether nodes or Jobs may run an image."""
        return any(_covers(entry, image) for entry in self.allowed_images)

    def allows_priority_class(self, name: str) -> bool:
        """Whether pods may have a PriorityClass; an empty name means none."""
        allowed = self.allowed_priority_classes
        return not name or name in allowed or ANY in allowed

    def denied_keys(self, keys: Mapping[str, Any]) -> list[str]:
        """Return the keys of a pod's labels or annotations that it may not have."""
        denied = self.denied_pod_metadata
        return sorted(k for k in keys if ANY in denied or k.startswith(denied))


def repository(image: str) -> str:
    """Return an image's name without tag and digest; a registry's port stays."""
    name = image.partition("@")[0]
    head, colon, tag = name.rpartition(":")
    return head if colon and "/" not in tag else name


def _covers(entry: str, image: str) -> bool:
    if entry in (ANY, image):
        return True
    if not image.startswith(entry):
        return False
    rest = image.removeprefix(entry)
    # `registry:5000/x` is no tag of the repository `registry`.
    return entry.endswith("/") or (rest[0] in ":@" and "/" not in rest)


def loosened(security: Mapping[str, Any], path: str) -> Iterator[str]:
    """Yield a sentence for each field of a securityContext that loosens the restricted pod."""
    for key, value in security.items():
        harmless, why = _SECURITY.get(key, (_empty, "is left to the cluster"))
        if not harmless(value):
            yield f"{path}.{key} {why}"


def _empty(value: Any) -> bool:
    return not value


def _not_root(value: Any) -> bool:
    return isinstance(value, int) and value > 0


def _runtime_default(value: Any) -> bool:
    return isinstance(value, Mapping) and value.get("type") == "RuntimeDefault"


_SECURITY: Final[Mapping[str, tuple[Callable[[Any], bool], str]]] = MappingProxyType(
    {
        "runAsUser": (_not_root, "must be above 0, which is root"),
        "runAsGroup": (_not_root, "must be above 0, which is root's"),
        "fsGroup": (_not_root, "must be above 0, which is root's"),
        "supplementalGroups": (lambda groups: all(map(_not_root, groups)), "cannot have root's, 0"),
        "runAsNonRoot": (bool, "cannot be false"),
        "seccompProfile": (_runtime_default, "must be of type RuntimeDefault"),
        "appArmorProfile": (_runtime_default, "must be of type RuntimeDefault"),
        "fsGroupChangePolicy": (lambda _: True, ""),
        "supplementalGroupsPolicy": (lambda _: True, ""),
        "seLinuxChangePolicy": (lambda _: True, ""),
    }
)
"""For each field of a pod's securityContext: whether a value keeps the pod restricted (the Pod
Security Standard of that name), and what is wrong with one that does not. Others, such as sysctls
and SELinux options, must be empty."""


def tolerates_control_plane(toleration: Mapping[str, Any]) -> bool:
    """Whether a toleration lets a pod onto the control plane's machines; one without a key does."""
    key = toleration.get("key") or ""
    return key in _CONTROL_PLANE if key else toleration.get("operator") == "Exists"
