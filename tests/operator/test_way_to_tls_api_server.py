"""A group in plain text gets certificates, on a real API server, by one rollout."""

from __future__ import annotations

import functools
from collections.abc import Iterator

import pytest

from tests.operator.api_server import ApiServer, running
from tests.operator.live import Operator, Story, chart, new_story
from tests.waiting import eventually_async

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


async def _restarted(story: Story, ordinal: int, uids: set[str]) -> None:
    """Wait until the operator restarted a pod; it has what it mounts by then, and takes both."""
    pod = f"orders-{ordinal}"

    async def is_new() -> bool:
        found = await story.get("pod", pod)
        return bool(found) and found["metadata"]["uid"] not in uids

    await eventually_async(is_new, f"another pod {pod}")
    files = await story.secret("orders-peer-tls")
    await story.nodes.encrypt(
        ordinal,
        trusted=files["ca.crt"],
        chain=files[f"{pod}.crt"],
        key=files[f"{pod}.key"],
        plain_too=True,
    )
    await story.run_pods()


async def test_an_operator_that_gives_certificates_rolls_them_out_and_ends_plain_text(
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
            assert await eventually_async(mode, "the Secret has a mode") == "both"
            for ordinal in (2, 1, 0):
                assert await mode() == "both"
                await _restarted(story, ordinal, pods)

            async def is_required() -> bool:
                return await mode() == "required"

            await eventually_async(is_required, "TLS alone")
            for secret in ("orders-backup-tls", "orders-admin-tls"):
                assert (await story.secret(secret))["mode"] == b"required"
            await story.until_condition("Progressing", "False/Complete")
            await story.until_condition("Degraded", "False/AsExpected")
        finally:
            assert after.stop() == 0
