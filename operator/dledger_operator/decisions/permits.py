"""What a spec asks for that whoever installed the operator does not allow (`policy.py`). Pure.

Each sentence names the field, and the value of the chart that decides it.
"""

from __future__ import annotations

from collections.abc import Iterator

from dledger_operator.api.policy import ENFORCED, loosened, tolerates_control_plane
from dledger_operator.api.spec import BrokerGroup


def not_allowed(group: BrokerGroup) -> Iterator[str]:
    """Yield what the nodes of a group may not be."""
    spec, policy = group.spec, group.policy
    if spec.image and not policy.allows_image(spec.image):
        yield _image(group, "spec.image", spec.image)
    if not policy.allows_priority_class(spec.priority_class_name):
        allowed = ", ".join(policy.allowed_priority_classes) or "none"
        yield (
            f"spec.priorityClassName={spec.priority_class_name}: is not among the chart's "
            f"allowedPriorityClasses ({allowed})"
        )
    for name, keys in (("podLabels", spec.pod_labels), ("podAnnotations", spec.pod_annotations)):
        for key in policy.denied_keys(keys):
            yield f"spec.{name}[{key}]: is among the chart's deniedPodMetadata"
    if policy.pod_security == ENFORCED:
        yield from (f"{said} (the chart's podSecurity is {ENFORCED})" for said in _loosened(group))


def spark_not_allowed(group: BrokerGroup) -> Iterator[str]:
    """Yield what the Jobs of a group may not be."""
    image = group.spec.spark.image
    if image and not group.policy.allows_image(image):
        yield _image(group, "spec.spark.image", image)


def _image(group: BrokerGroup, path: str, image: str) -> str:
    allowed = ", ".join(group.policy.allowed_images) or "none"
    return (
        f"{path}={image}: is not one of the chart's images nor of allowedImages ({allowed}); "
        "who installed the operator may add it"
    )


def _loosened(group: BrokerGroup) -> Iterator[str]:
    spec = group.spec
    yield from loosened(spec.security_context, "spec.securityContext")
    for number, toleration in enumerate(spec.tolerations):
        if tolerates_control_plane(toleration):
            yield f"spec.tolerations[{number}]: lets pods onto machines of the control plane"
    if spec.service_account_name:
        yield (
            f"spec.serviceAccountName={spec.service_account_name}: clouds and webhooks give pods "
            "what an account has"
        )
