"""Leader election between operator pods."""

from __future__ import annotations

import asyncio
import copy
from functools import partial
from typing import Any

import pytest

from dledger_operator.api.spec import Manifest
from dledger_operator.cluster.api import ApiError
from dledger_operator.cluster.lease import Elector, LeaseName, Leases, claim
from tests.waiting import eventually

WHO = LeaseName(namespace="ns", name="op", identity="one")
OTHER = LeaseName(namespace="ns", name="op", identity="two")
NOW = "2031-05-06T07:08:09.000000Z"


def _lease(holder: str, duration_s: int = 15) -> Manifest:
    spec = {
        "holderIdentity": holder,
        "leaseDurationSeconds": duration_s,
        "acquireTime": "then",
        "renewTime": "then",
        "leaseTransitions": 4,
    }
    metadata = {"namespace": "ns", "name": "op", "resourceVersion": "7"}
    return {"metadata": metadata, "spec": spec}


@pytest.mark.parametrize(
    ("lease", "unchanged_s", "transitions"),
    [
        (None, 0.0, 0),
        (_lease(""), 0.0, 5),
        (_lease("two"), 15.0, 5),
        (_lease("two", duration_s=1), 1.0, 5),
        (_lease("one"), 0.0, 4),
    ],
)
def test_a_lease_that_is_free_expired_or_ours_is_claimed(
    lease: Manifest | None, unchanged_s: float, transitions: int
) -> None:
    """Transitions count changes of holder."""
    claimed = claim(lease, WHO, unchanged_s=unchanged_s, now=NOW)

    assert claimed is not None
    assert claimed["spec"]["holderIdentity"] == "one"
    assert claimed["spec"]["renewTime"] == NOW
    assert claimed["spec"].get("leaseTransitions", 0) == transitions


def test_anothers_lease_is_respected_until_it_was_seen_unchanged_for_its_duration() -> None:
    """Whatever its own timestamps say: clocks differ."""
    assert claim(_lease("two"), WHO, unchanged_s=14.9, now=NOW) is None


def test_the_time_of_acquisition_stays_while_it_is_renewed() -> None:
    """It changes with the holder only."""
    renewed = claim(_lease("one"), WHO, unchanged_s=0, now=NOW)
    taken = claim(_lease(""), WHO, unchanged_s=0, now=NOW)

    assert renewed is not None
    assert taken is not None
    assert renewed["spec"]["acquireTime"] == "then"
    assert taken["spec"]["acquireTime"] == NOW


class _Api(Leases):
    """One Lease, with optimistic locking; can be made to fail."""

    def __init__(self) -> None:
        self.lease: Any = None
        self.version = 0
        self.down = False

    async def get(self, kind: str, namespace: str, name: str) -> Manifest | None:
        self._check()
        found: Manifest | None = copy.deepcopy(self.lease)
        return found

    async def create(self, manifest: Manifest) -> Manifest:
        self._check()
        if self.lease:
            raise ApiError(409, "exists")
        return self._put(manifest)

    async def replace(self, manifest: Manifest) -> Manifest:
        self._check()
        if manifest["metadata"]["resourceVersion"] != str(self.version):
            raise ApiError(409, "changed")
        return self._put(manifest)

    def _put(self, manifest: Manifest) -> Manifest:
        self.version += 1
        self.lease = copy.deepcopy(manifest)
        self.lease["metadata"]["resourceVersion"] = str(self.version)
        return manifest

    def _check(self) -> None:
        if self.down:
            raise ApiError(0, "no answer")


async def test_of_two_that_start_together_one_acts() -> None:
    """The other takes over as soon as the first lets go."""
    api = _Api()
    electors = [Elector(api, who, retry_s=0.01) for who in (WHO, OTHER)]
    waiting = [asyncio.create_task(elector.acquire()) for elector in electors]

    done, pending = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
    assert len(done) == 1
    first = waiting.index(next(iter(done)))
    await asyncio.sleep(0.05)
    assert len([task for task in waiting if task.done()]) == 1

    await electors[first].release()
    await asyncio.wait_for(next(iter(pending)), 30)
    assert api.lease["spec"]["holderIdentity"] == (OTHER, WHO)[first].identity


async def test_who_cannot_renew_in_time_gives_up() -> None:
    """Before the Lease's duration is over, so that no two ever act."""
    api, clock = _Api(), [0.0]
    elector = Elector(api, WHO, monotonic_s=lambda: clock[0], retry_s=0.001)
    await elector.acquire()
    api.down = True

    keeping = asyncio.create_task(elector.keep())
    await asyncio.sleep(0.01)
    assert not keeping.done()
    clock[0] = 10.0

    await asyncio.wait_for(keeping, 30)


def _is_newer(api: _Api, version: int) -> bool:
    return api.version != version


async def test_who_renews_keeps_on() -> None:
    """Each renewal starts the time anew."""
    api, clock = _Api(), [0.0]
    elector = Elector(api, WHO, monotonic_s=lambda: clock[0], retry_s=0.001)
    await elector.acquire()

    keeping = asyncio.create_task(elector.keep())
    for _ in range(5):
        clock[0] += 6
        renewed = api.version
        await eventually(partial(_is_newer, api, renewed))

    assert not keeping.done()
    keeping.cancel()


async def test_a_lease_that_is_not_ours_is_not_released() -> None:
    """Nor is it an error when the API server is gone."""
    api = _Api()
    await Elector(api, OTHER).acquire()

    await Elector(api, WHO).release()
    assert api.lease["spec"]["holderIdentity"] == "two"
    api.down = True
    await Elector(api, OTHER).release()


async def test_that_another_holds_the_lease_is_told() -> None:
    """What is shown of the groups here is not the newest any more."""
    api, told = _Api(), asyncio.Event()
    await Elector(api, WHO, on_other=told.set).acquire()
    assert not told.is_set()

    waiting = asyncio.create_task(Elector(api, OTHER, on_other=told.set).acquire())

    await asyncio.wait_for(told.wait(), 30)
    waiting.cancel()
