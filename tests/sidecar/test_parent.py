"""The parent holds the ports: clients wait while the child is made anew, and are not refused."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import grpc
import pytest

from dledger.rpc.rocketmq_stubs import definition, service
from dledger.sidecar.upstream import path_of
from e2e.harness.ports import free_port_range
from e2e.harness.sidecar import children, has_spare
from tests.waiting import eventually_blocking

RUN = "import sys; from dledger.cli.commands import dledger; sys.exit(dledger())"


def started(directory: Path, *options: str) -> tuple[subprocess.Popen[str], int]:
    """Start ``dledger spool run`` beside no group; return it and its port."""
    port = free_port_range()
    command = [sys.executable, "-c", RUN, "spool", "run", "--listen", f"127.0.0.1:{port}"]
    command += ["--upstream", "127.0.0.1:9", "--dir", str(directory), *options]
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ), port


@pytest.fixture
def running(tmp_path: Path) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """Return a sidecar whose child serves."""
    process, port = started(tmp_path / "spool")
    assert process.stdout is not None
    process.stdout.readline()
    eventually_blocking(lambda: greeted(port), "a child that serves")
    yield process, port
    if process.poll() is None:
        process.terminate()
    process.communicate(timeout=30)


def greeted(port: int) -> bool:
    """Whether somebody answers HTTP/2's preface."""
    with socket.create_connection(("127.0.0.1", port), timeout=10) as connection:
        connection.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0]))
        return bool(connection.recv(9))


def has_gone(pid: int, child: int) -> bool:
    """Whether a process has another child than that."""
    return child not in children(pid)


@pytest.mark.slow
def test_a_killed_child_costs_no_connection(running: tuple[subprocess.Popen[str], int]) -> None:
    """0.10: an SDK gives up 0.18 s after its address refuses. The kernel keeps it waiting here."""
    process, port = running
    for _ in range(2):
        eventually_blocking(partial(has_spare, process.pid), "a spare child")
        child, spare = children(process.pid)
        os.kill(child, signal.SIGKILL)
        eventually_blocking(partial(has_gone, process.pid, child), "its end")

        assert greeted(port)
        assert children(process.pid)[0] == spare


@pytest.mark.slow
def test_a_parent_is_small_and_ends_with_its_children(
    running: tuple[subprocess.Popen[str], int],
) -> None:
    """Nothing is imported that could end it: no gRPC, no protobuf, no HTTP/2."""
    process, _ = running
    eventually_blocking(partial(has_spare, process.pid), "a spare child")
    served_by = children(process.pid)
    mapped = Path(f"/proc/{process.pid}/maps").read_text("ascii")
    process.terminate()

    assert process.wait(30) == 0
    assert not [pid for pid in served_by if Path(f"/proc/{pid}").exists()]
    assert not [name for name in ("grpc", "google", "ngh2", "crc32c", "uvloop") if name in mapped]


def test_a_taken_address_is_said_and_ends_it(tmp_path: Path) -> None:
    """With the address in the sentence."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        process, _ = started(tmp_path, "--listen", f"127.0.0.1:{port}")
        _, said = process.communicate(timeout=30)

    assert process.returncode == 2
    assert f"cannot listen on 127.0.0.1:{port}" in said


def test_wrong_options_of_the_child_end_the_parent(tmp_path: Path) -> None:
    """They do not become right."""
    process, _ = started(tmp_path / "spool", "--topic", "orders:SURPRISING")
    _, said = process.communicate(timeout=30)

    assert process.returncode == 2
    assert "the group has no type 'SURPRISING'" in said


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (("--upstream-tls", "--upstream-ca-file", "none.crt"), "TLS to the group: "),
        (("--upstream-name", "orders"), "go with --upstream-tls"),
        (("--upstream-tls", "--upstream-cert-file", "a.crt"), "--upstream-key-file go together"),
    ],
)
def test_wrong_options_of_tls_to_the_group_are_said(
    tmp_path: Path, options: tuple[str, ...], why: str
) -> None:
    """By the child, which got them as they were given."""
    process, _ = started(tmp_path / "spool", *options)
    _, said = process.communicate(timeout=60)

    assert process.returncode == 2
    assert why in said


@pytest.mark.slow
def test_metrics_are_served_and_status_stays_well_while_the_group_is_away(tmp_path: Path) -> None:
    """A gauge says degraded; no probe of Kubernetes takes the pod away for that."""
    where = f"127.0.0.1:{free_port_range()}"
    process, port = started(tmp_path / "spool", "--metrics", where)
    try:
        assert process.stdout is not None
        process.stdout.readline()
        eventually_blocking(lambda: greeted(port), "a child that serves")
        with urllib.request.urlopen(f"http://{where}/metrics", timeout=10) as answer:
            text = answer.read().decode()
    finally:
        process.terminate()
        process.communicate(timeout=30)

    assert 'dledger_spool_depth{spool="spool"} 0.0' in text
    assert 'dledger_spool_unknown_outcomes{spool="spool"} 0.0' in text


def test_status_of_no_spool_is_refused(tmp_path: Path) -> None:
    """In words, and for programs."""
    command = [sys.executable, "-c", RUN, "spool", "status", "--dir", str(tmp_path), "--json"]

    done = subprocess.run(command, capture_output=True, text=True, check=False)

    assert done.returncode == 1
    assert "it is no spool" in json.loads(done.stdout)["error"]["message"]


@pytest.mark.slow
def test_a_name_that_is_advertised_is_told_by_its_address(tmp_path: Path) -> None:
    """Found: a Service's name in a route is `ipv4:NAME` to an SDK, which cannot be dialled."""
    options = ("--advertise", "localhost", "--topic", "orders:NORMAL")
    process, port = started(tmp_path / "spool", *options)
    request = service.QueryRouteRequest(topic=definition.Resource(name="orders"))
    try:
        assert process.stdout is not None
        process.stdout.readline()
        with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
            ask = channel.unary_unary(path_of("QueryRoute"))
            answer = ask(request.SerializeToString(), timeout=30, wait_for_ready=True)
    finally:
        process.terminate()
        process.communicate(timeout=30)

    (queue,) = service.QueryRouteResponse.FromString(answer).message_queues
    (address,) = queue.broker.endpoints.addresses
    assert (address.host, address.port) == ("127.0.0.1", port)
