"""Leader election between operator pods: one `coordination.k8s.io` Lease, 15/10/2 seconds.

Clocks of other machines are not trusted: a Lease has expired when it was observed unchanged for its
duration. Its holder renews it every 2 s and stops acting if it could not for 10 s. The numbers are
controller-runtime's defaults. Used by `__main__`.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final, Protocol

from dledger_operator.api.spec import Json, Manifest
from dledger_operator.cluster.api import ApiError

log: Final = logging.getLogger(__name__)

DURATION_S: Final = 15
RENEW_DEADLINE_S: Final = 10.0
RETRY_S: Final = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseName:
    """Which Lease, and the name of this process in it."""

    namespace: str
    name: str
    identity: str


def claim(lease: Json | None, who: LeaseName, *, unchanged_s: float, now: str) -> Manifest | None:
    """Return the Lease to write in order to hold it, or None while another process holds it.

    Args:
        lease: The current Lease; None if it does not exist.
        who: Which Lease, and this process.
        unchanged_s: How long the current Lease was observed unchanged.
        now: RFC 3339 with microseconds.
    """
    metadata = dict(lease["metadata"]) if lease else {"namespace": who.namespace, "name": who.name}
    spec = dict(lease.get("spec") or {}) if lease else {}
    holder = spec.get("holderIdentity") or ""
    ours = holder == who.identity
    expired = unchanged_s >= spec.get("leaseDurationSeconds", DURATION_S)
    if holder and not ours and not expired:
        return None
    spec |= {"holderIdentity": who.identity, "leaseDurationSeconds": DURATION_S, "renewTime": now}
    if not ours:
        spec["acquireTime"] = now
        spec["leaseTransitions"] = spec.get("leaseTransitions", 0) + (1 if lease else 0)
    return _lease(metadata, spec)


class Leases(Protocol):
    """What is asked of Kubernetes for a Lease. Every method raises ApiError."""

    async def get(self, kind: str, namespace: str, name: str) -> Manifest | None:
        """Return an object, or None if it does not exist."""

    async def create(self, manifest: Manifest) -> Manifest:
        """Create an object; refused (409) if it exists."""

    async def replace(self, manifest: Manifest) -> Manifest:
        """Replace an object; refused (409) if its resourceVersion is no more that of *manifest*."""


class Elector:
    """Takes, keeps and releases the Lease.

    *on_other* is called each time that another process is seen to hold it.
    """

    def __init__(
        self,
        api: Leases,
        who: LeaseName,
        *,
        monotonic_s: Callable[[], float] = time.monotonic,
        retry_s: float = RETRY_S,
        on_other: Callable[[], None] = lambda: None,
    ) -> None:
        self._api = api
        self._who = who
        self._monotonic_s = monotonic_s
        self._retry_s = retry_s
        self._on_other = on_other
        self._seen: tuple[str, float] = ("", 0.0)
        self.answered_s = monotonic_s()
        """When the API server last answered (monotonic)."""
        self._renewed_s = float("-inf")

    def age_s(self) -> float:
        """Return how long ago this process took or renewed the Lease; infinite if it never did."""
        return self._monotonic_s() - self._renewed_s

    async def acquire(self) -> None:
        """Return when this process holds the Lease."""
        while not await self._try():  # noqa: ASYNC110 - nothing here could wake it
            await asyncio.sleep(self._retry_s)
        log.info("%s holds lease %s/%s", self._who.identity, self._who.namespace, self._who.name)

    async def keep(self) -> None:
        """Renew the Lease; return when it is lost or could not be renewed in time."""
        renewed_s = self._monotonic_s()
        while self._monotonic_s() - renewed_s < RENEW_DEADLINE_S:
            await asyncio.sleep(self._retry_s)
            before_s = self._monotonic_s()
            if await self._try():
                renewed_s = before_s
        log.warning("%s lost the lease", self._who.identity)

    async def release(self) -> None:
        """Let the next process take it at once; does nothing if this one does not hold it."""
        try:
            lease = await self._api.get("Lease", self._who.namespace, self._who.name)
            if lease and lease["spec"].get("holderIdentity") == self._who.identity:
                spec = {**lease["spec"], "holderIdentity": "", "leaseDurationSeconds": 1}
                await self._api.replace(_lease(lease["metadata"], spec))
                log.info("%s released the lease", self._who.identity)
        except ApiError as error:
            log.warning("%s could not release the lease: %s", self._who.identity, error)

    async def _try(self) -> bool:
        asked_s = self._monotonic_s()
        try:
            lease = await self._api.get("Lease", self._who.namespace, self._who.name)
            self.answered_s = self._monotonic_s()
            wanted = claim(lease, self._who, unchanged_s=self._unchanged_s(lease), now=_now())
            if wanted is None:
                self._on_other()
                return False
            await (self._api.replace(wanted) if lease else self._api.create(wanted))
        except ApiError as error:
            if error.status != 409:  # another was quicker
                log.warning("lease %s/%s: %s", self._who.namespace, self._who.name, error)
            return False
        self._renewed_s = asked_s
        return True

    def _unchanged_s(self, lease: Json | None) -> float:
        version = str(lease["metadata"].get("resourceVersion")) if lease else ""
        now_s = self._monotonic_s()
        if version != self._seen[0]:
            self._seen = (version, now_s)
        return now_s - self._seen[1]


def _lease(metadata: Json, spec: Json) -> Manifest:
    return {
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": dict(metadata),
        "spec": dict(spec),
    }


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
