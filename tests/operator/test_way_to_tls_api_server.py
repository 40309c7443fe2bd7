"""A group in plain text gets certificates, on a real API server: one restart of each pod."""

from __future__ import annotations

import functools
from collections.abc import Iterator

import pytest

from tests.operator.api_server import ApiServer, running
from tests.operator.live import Operator, Story, chart, eventually, new_story

pytestmark = [pytest.mark.e2e, pytest.mark.long]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiServer]:
    """An API server with the chart's contents."""
    with running(tmp_path_factory.mktemp("api-server"), first=chart()) as made:
        for plural in ("brokergroups", "brokerbackups"):
            made.kubectl("wait", "--for=condition=Established", f"crd/{plural}.dledger.io")
        yield made


async def _mode(story: Story) -> str:
    return (await story.secret("orders-peer-tls"))["mode"].decode()


async def _restart(story: Story, ordinal: int) -> None:
    """Restart a pod with what it mounts by now: a node that takes plain text beside TLS."""
    pod = f"orders-{ordinal}"
    uid = (await story.get("pod", pod))["metadata"]["uid"]
    await story.kubectl("delete", "pod", pod, "--force", "--grace-period=0")
    files = await story.secret("orders-peer-tls")
    await story.nodes.encrypt(
        ordinal,
        trusted=files["ca.crt"],
        chain=files[f"{pod}.crt"],
        key=files[f"{pod}.key"],
        plain_too=True,
    )

    async def is_new() -> bool:
        found = await story.get("pod", pod)
        return bool(found) and found["metadata"]["uid"] != uid

    await eventually(f"another pod {pod}", is_new)
    await story.run_pods()


async def test_an_operator_that_gives_certificates_restarts_nothing_and_ends_plain_text(
    server: ApiServer, namespace: str
) -> None:
    """Until the last pod has answered over TLS, both are accepted; then TLS alone."""
    async with new_story(server, namespace, "orders") as story:
        before = Operator(server, "before")
        try:
            await story.up()
            await story.until_condition("Progressing", "False/Complete")
        finally:
            assert before.stop() == 0
        pods = {pod["metadata"]["uid"] for pod in await story.list("pods")}

        after = Operator(server, "after", gives_certificates=True)
        try:
            mode = functools.partial(_mode, story)
            assert await eventually("the Secret has a mode", mode) == "both"
            await story.until_condition("Progressing", "True/RestartPending")
            assert {pod["metadata"]["uid"] for pod in await story.list("pods")} == pods
            for ordinal in range(3):
                assert await mode() == "both"
                await _restart(story, ordinal)

            async def is_required() -> bool:
                return await mode() == "required"

            await eventually("TLS alone", is_required)
            for secret in ("orders-backup-tls", "orders-admin-tls"):
                assert (await story.secret(secret))["mode"] == b"required"
            await story.until_condition("Progressing", "False/Complete")
            await story.until_condition("Degraded", "False/AsExpected")
        finally:
            assert after.stop() == 0
