"""An operator of one namespace: Roles there, and nothing of the cluster but the CRDs."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.operator.api_server import ApiServer, running
from tests.operator.live import SYSTEM, Operator, chart, new_story

pytestmark = [pytest.mark.e2e]

VALUES = (
    "watchNamespaces={shop}",
    *("rbac.aggregate=false", "admissionPolicy.enabled=false"),
)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiServer]:
    """An API server with what somebody installs who may make nothing of the cluster's."""
    shop = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "shop"}}
    with running(tmp_path_factory.mktemp("api-server"), first=[shop, *chart(*VALUES)]) as made:
        for plural in ("brokergroups", "brokerbackups"):
            made.kubectl("wait", "--for=condition=Established", f"crd/{plural}.dledger.io")
        yield made


async def test_a_group_with_certificates_is_founded_by_rights_in_its_namespace_alone(
    server: ApiServer,
) -> None:
    """The operator's account may not even read Secrets elsewhere, nor Nodes."""
    role = "Role/dledger-operator-drivers"
    args = ("--namespaces", "shop", "--driver-role", role)
    operator = Operator(server, "first", *args, gives_certificates=True)

    async with new_story(server, "shop", "orders") as story:
        await story.up_encrypted()
        await story.until_condition("Degraded", "False/AsExpected")
    who = f"--as=system:serviceaccount:{SYSTEM}:dledger-operator"
    for verb, of, where in (
        ("get", "secrets", "default"),
        ("list", "brokergroups.dledger.io", "default"),
        ("get", "nodes", "default"),
    ):
        asked = ("auth", "can-i", verb, of, "-n", where, who)
        assert server.kubectl(*asked, check=False).stdout.strip() == "no", of
    assert operator.stop() == 0
