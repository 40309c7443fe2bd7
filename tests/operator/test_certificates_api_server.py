"""Certificates on a real API server, with the chart's rights, and nodes that ask for them."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator

import pytest

from tests.operator.api_server import ApiServer, running
from tests.operator.live import NODE_IMAGE, SPARK_IMAGE, SYSTEM, Operator, Story, chart, new_story
from tests.waiting import eventually_async

pytestmark = [pytest.mark.e2e]

_SECRETS = (
    *("orders-ca", "orders-peer-tls", "orders-backup-tls", "orders-compactor-tls"),
    "orders-admin-tls",
)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiServer]:
    """An API server with the chart's contents for peers with TLS."""
    with running(tmp_path_factory.mktemp("api-server"), first=chart()) as made:
        for plural in ("brokergroups", "brokerbackups"):
            made.kubectl("wait", "--for=condition=Established", f"crd/{plural}.dledger.io")
        yield made


@pytest.fixture(scope="module")
def operator(server: ApiServer) -> Iterator[Operator]:
    """The operator, acting."""
    made = Operator(server, "first", gives_certificates=True)
    yield made
    assert made.stop() == 0


@pytest.fixture
async def story(server: ApiServer, operator: Operator, namespace: str) -> AsyncIterator[Story]:
    """A group `orders` whose nodes answer."""
    async with new_story(server, namespace, "orders") as made:
        yield made


async def test_a_new_group_is_founded_over_tls_alone(story: Story) -> None:
    """The nodes refuse whoever shows no certificate of the group."""
    await story.up_encrypted()

    assert (await story.secret("orders-peer-tls"))["mode"] == b"required"
    assert story.nodes.bootstraps == 1
    template = (await story.get("statefulset", "orders"))["spec"]["template"]["spec"]
    assert "orders-peer-tls" in str(template["volumes"])
    await story.until_condition("Degraded", "False/AsExpected")


async def test_a_node_with_the_certificate_of_another_is_not_believed(story: Story) -> None:
    """What answers at the address of orders-1 shows that it is orders-2."""
    await story.up_encrypted()
    files = await story.secret("orders-peer-tls")

    chain, key = files["orders-2.crt"], files["orders-2.key"]
    await story.nodes.encrypt(1, trusted=files["ca.crt"], chain=chain, key=key)

    async def silent() -> bool:
        rows = (await story.status())["members"]
        return any(row["name"] == "orders-1" and row["role"] == "unknown" for row in rows)

    await eventually_async(silent, "orders-1 counts as silent")


async def test_an_authority_that_is_missing_can_be_set_back_to_none(story: Story) -> None:
    """As the documentation says; the certificates in use stay meanwhile."""
    await story.up_encrypted()
    files = await story.secret("orders-peer-tls")

    await story.kubectl("patch", "bg", "orders", "--type=merge", "-p", _authority("nobody"))
    await story.until_condition("Degraded", "True/AuthorityInvalid")
    assert "spec.peerTls.caSecretName" in await story.message("Degraded")
    await story.kubectl("patch", "bg", "orders", "--type=merge", "-p", _authority(""))

    await story.until_condition("Degraded", "False/AsExpected")
    assert await story.condition("SpecValid") == "True/Accepted"
    assert await story.secret("orders-peer-tls") == files


def _authority(name: str) -> str:
    return json.dumps({"spec": {"peerTls": {"caSecretName": name}}})


async def test_a_converged_group_with_certificates_causes_no_write(
    story: Story, operator: Operator
) -> None:
    """A Secret is written when something in it has to change."""
    await story.up_encrypted()
    await story.until_condition("Progressing", "False/Complete")
    versions = [
        (await story.get("secret", name))["metadata"]["resourceVersion"] for name in _SECRETS
    ]
    rounds = sum(operator.metric("dledger_operator_rounds_total"))

    async def later() -> bool:
        return sum(operator.metric("dledger_operator_rounds_total")) > rounds + 2

    await eventually_async(later, "it did more rounds")
    assert versions == [
        (await story.get("secret", name))["metadata"]["resourceVersion"] for name in _SECRETS
    ]
    assert operator.metric("dledger_operator_certificate_expiry_timestamp_seconds")


async def test_a_foreign_secret_is_left_alone_and_named(story: Story) -> None:
    """No pod mounts it."""
    await story.kubectl("create", "secret", "generic", "orders-peer-tls", "--from-literal=a=b")

    await story.apply()

    await story.until_condition("Degraded", "True/ApplyRefused")
    assert "Secret orders-peer-tls: the name is taken by" in await story.message("Degraded")
    assert set(await story.secret("orders-peer-tls")) == {"a"}
    assert not await story.list("statefulset")


async def test_the_operators_account_has_secrets_by_name_alone(
    server: ApiServer, operator: Operator, story: Story
) -> None:
    """It cannot list or delete them, and the admission policy holds it to those of groups."""
    who = f"--as=system:serviceaccount:{SYSTEM}:dledger-operator"
    for verb, expected in (("get", "yes"), ("patch", "yes"), ("list", "no"), ("delete", "no")):
        args = ("auth", "can-i", verb, "secrets", "-n", story.namespace, who)
        assert server.kubectl(*args, check=False).stdout.strip() == expected, verb
    await story.kubectl("create", "secret", "generic", "db", "--from-literal=a=b")
    patch = ("patch", "secret", "db", "-n", story.namespace, "-p", '{"data":{}}', who)

    async def held() -> bool:
        done = server.kubectl(*patch, "--dry-run=server", check=False)
        return done.returncode != 0 and "managed-by=dledger-operator" in done.stderr

    await eventually_async(held, "the admission policy is in force")
    await story.up_encrypted()
    mine = await story.get("secret", "orders-ca")
    renamed = {**mine, "metadata": {**mine["metadata"], "name": "orders-other"}}
    del renamed["metadata"]["resourceVersion"], renamed["metadata"]["uid"]
    done = server.kubectl(
        *("create", "-f", "-", "--dry-run=server", who), manifest=renamed, check=False
    )
    assert "no Secrets but those with the certificates of a group" in done.stderr
    assert NODE_IMAGE in str(await story.get("statefulset", "orders"))
    assert SPARK_IMAGE not in str(await story.get("statefulset", "orders"))
