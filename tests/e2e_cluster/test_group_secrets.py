"""A story judges a group's Secrets by rules of its own: what it must see, and what it plays."""

from __future__ import annotations

import time

import pytest

from dledger_operator.cluster import issuing
from dledger_operator.cluster.issuing import Dates, Identity, Pair
from e2e.harness.group_secrets import (
    ADMIN,
    AUTHORITY,
    BACKUP,
    KINDS,
    PEERS,
    Files,
    expire,
    find_faults,
    list_authorities,
    list_leaves,
    list_trusted,
)

MEMBERS = ("orders-0", "orders-1")
DATES = Dates(time.time() - 60, time.time())


def _issue(authority: Pair, holder: str) -> Pair:
    return issuing.issue(authority, Identity(f"member/{holder}", (holder,)), DATES)


def _whole(authority: Pair, *trusted: Pair) -> dict[str, Files]:
    """Return the Secrets of a group whose certificates are all of one authority."""
    bundle = {"ca.crt": b"".join(one.chain for one in trusted or (authority,)), "mode": b"required"}
    peers = dict(bundle)
    for name in MEMBERS:
        pair = _issue(authority, name)
        peers |= {f"{name}.crt": pair.chain, f"{name}.key": pair.key}
    pair = _issue(authority, "backup")
    other = {**bundle, "tls.crt": pair.chain, "tls.key": pair.key}
    own = {"authority-1.crt": authority.chain, "authority-1.key": authority.key}
    return {AUTHORITY: own, PEERS: peers, BACKUP: other, ADMIN: other}


@pytest.fixture(scope="module")
def authority() -> Pair:
    return issuing.new_authority("orders", DATES)


@pytest.fixture(scope="module")
def another() -> Pair:
    return issuing.new_authority("another", DATES)


def test_a_group_as_the_operator_makes_it_is_whole(authority: Pair, another: Pair) -> None:
    """Also on the way to another authority, which all trust already."""
    assert find_faults(_whole(authority), MEMBERS) == []
    assert find_faults(_whole(authority, authority, another), MEMBERS) == []


@pytest.mark.parametrize("kind", KINDS)
def test_each_secret_that_is_missing_or_damaged_is_named(authority: Pair, kind: str) -> None:
    """A story would end too early otherwise."""
    whole = _whole(authority)
    absent = {each: files for each, files in whole.items() if each != kind}
    damaged = {**whole, kind: dict.fromkeys(whole[kind], b"-----BEGIN NOTHING-----")}

    assert f"{kind} is missing" in find_faults(absent, MEMBERS)
    assert any(fault.startswith(kind) for fault in find_faults(damaged, MEMBERS))


def test_who_is_signed_by_nobody_whom_all_trust_is_named(authority: Pair, another: Pair) -> None:
    """One Secret that lags behind is enough; so is an authority's key of another group."""
    whole, foreign = _whole(authority), _whole(another)

    assert "peer-tls: orders-0 has a certificate of nobody whom all trust" in find_faults(
        {**whole, ADMIN: foreign[ADMIN]}, MEMBERS
    )
    assert find_faults({**whole, AUTHORITY: foreign[AUTHORITY]}, MEMBERS) == [
        "ca has the key of nobody who is trusted"
    ]
    assert find_faults(whole, [*MEMBERS, "orders-2"]) == [
        "peer-tls: orders-2 has no certificate with its key"
    ]


@pytest.mark.parametrize("with_authority", [False, True])
def test_ended_certificates_are_those_of_the_same_keys(
    authority: Pair, with_authority: bool
) -> None:
    """Names and extensions stay, so that nothing but time is wrong with them."""
    whole = _whole(authority)

    ended = expire(whole, with_authority=with_authority)

    faults = find_faults(ended, MEMBERS)
    assert len(faults) == len(MEMBERS) + 2
    assert all("has a certificate that has ended" in fault for fault in faults)
    for before, after in zip(list_leaves(whole), list_leaves(ended), strict=True):
        assert before.public_key() == after.public_key()
        assert list(before.extensions) == list(after.extensions)
        assert issuing.signer_of(after, list_trusted(ended[PEERS])) is not None
    (known,), (used,) = list_authorities(whole[AUTHORITY]), list_authorities(ended[AUTHORITY])
    assert (known == used) is not with_authority
    assert find_faults(whole, MEMBERS) == []
