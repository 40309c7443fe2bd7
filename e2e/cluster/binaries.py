"""Programs that single tests ask for: built from Go modules when first asked for, then cached."""

from __future__ import annotations

from pathlib import Path

from e2e.cluster import golang
from e2e.cluster.layout import default_layout
from e2e.cluster.steps import Steps


def prometheus() -> Path:
    """Return Prometheus, without service discovery and web pages."""
    return golang.ensure(default_layout(), golang.PROMETHEUS, Steps())


def promtool() -> Path:
    """Return promtool, of the same version."""
    return golang.ensure(default_layout(), golang.PROMTOOL, Steps())


def versitygw() -> Path:
    """Return versitygw, an S3 server over a directory."""
    return golang.ensure(default_layout(), golang.VERSITYGW, Steps())


def etcd_peer() -> Path:
    """Return the etcd that the bench compares with."""
    return golang.ensure(default_layout(), golang.ETCD_PEER, Steps())


def etcd_load() -> Path:
    """Return the bench's load on an etcd cluster, by etcd's own Go client."""
    return golang.ensure(default_layout(), golang.ETCD_LOAD, Steps())
