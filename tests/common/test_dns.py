"""Names become addresses without waiting for a DNS that does not answer."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from dledger.common.dns import OF_THE_SYSTEM, VARIABLE, search_list, whole

POD = ("ns.svc.cluster.local", "svc.cluster.local", "cluster.local", "example.com")


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("orders-0.orders-nodes.ns.svc", "orders-0.orders-nodes.ns.svc.cluster.local."),
        ("orders.ns.svc.cluster.local", "orders.ns.svc.cluster.local."),
        ("orders.ns.svc.cluster.local.", "orders.ns.svc.cluster.local."),
        ("orders", "orders"),
        ("orders.ns", "orders.ns"),
        ("svc", "svc"),
        ("broker.example.com", "broker.example.com"),
        ("10.0.0.1", "10.0.0.1"),
        ("", ""),
    ],
)
def test_a_name_of_the_cluster_is_made_whole(host: str, expected: str) -> None:
    """So it has no search list, whose last candidate is asked for outside of the cluster."""
    assert whole(host, POD) == expected


@pytest.mark.parametrize("search", [(), ("example.com",), ("ns.svc.", "cluster.local")])
def test_outside_of_a_cluster_a_name_stays_as_it_is(search: tuple[str, ...]) -> None:
    """Who has no ``svc.DOMAIN`` to search in does not know the cluster's domain."""
    assert whole("orders.ns.svc", search) == "orders.ns.svc"


def test_the_clusters_domain_may_be_another() -> None:
    """It is what follows ``svc.``, with or without a dot at its end."""
    assert whole("orders.ns.svc", ("ns.svc.k8s.corp.", "svc.k8s.corp.")) == (
        "orders.ns.svc.k8s.corp."
    )


def test_the_last_search_list_of_a_file_is_in_force() -> None:
    """As resolv.conf(5) has it."""
    text = "# search a\nnameserver 10.96.0.10\nsearch a b\nsearch\tc d \noptions ndots:5\n"

    assert search_list(text) == ("c", "d")
    assert search_list("nameserver 10.96.0.10\n") == ()


LOOKING = """
import importlib, os, sys

class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == "grpc":
            print(os.environ.get("GRPC_DNS_RESOLVER"), flush=True)
            os._exit(0)

sys.meta_path.insert(0, Finder())
importlib.import_module(sys.argv[1])
"""
"""Prints what the variable is when gRPC, which reads it once, is imported."""


@pytest.mark.parametrize(
    ("program", "preset", "expected"),
    [
        ("dledger.cli.main", "", OF_THE_SYSTEM),
        ("dledger.client", "", OF_THE_SYSTEM),
        ("dledger_operator.__main__", "", OF_THE_SYSTEM),
        ("dledger_pipeline.cli.main", "", OF_THE_SYSTEM),
        ("dledger_pipeline.log.export_client", "", OF_THE_SYSTEM),
        ("dledger.client", "ares", "ares"),
    ],
)
def test_every_program_of_ours_chooses_before_grpc_looks(
    program: str, preset: str, expected: str
) -> None:
    """Node, client, operator, driver, executor; and whoever sets the variable has chosen."""
    environ = {key: value for key, value in os.environ.items() if key != VARIABLE}
    environ |= {"PYTHONPATH": os.pathsep.join(sys.path)}
    ran = subprocess.run(
        [sys.executable, "-c", LOOKING, program],
        env=environ | ({VARIABLE: preset} if preset else {}),
        capture_output=True,
        text=True,
        check=True,
    )

    assert ran.stdout.split() == [expected]
