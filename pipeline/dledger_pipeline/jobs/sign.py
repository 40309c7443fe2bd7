"""Sign: put the newest backup under the store's key, after proving that it is whole. No Spark."""

from __future__ import annotations

from dataclasses import dataclass

from dledger_pipeline.archive import manifest
from dledger_pipeline.archive.verify import verify
from dledger_pipeline.errors import StoreError
from dledger_pipeline.jobs.result import COMPLETED, Progress, Result
from dledger_pipeline.object_store.store import Store


@dataclass(frozen=True, slots=True, kw_only=True)
class SignRequest:
    """Whose newest backup to sign."""

    store: str
    store_endpoint: str | None = None
    allow_http: bool = False
    group_id: str | None = None


def sign(request: SignRequest, progress: Progress) -> Result:
    """Sign what is in the store now, whoever wrote it: say so only when you know who did.

    Raises:
        StoreError: DLEDGER_MANIFEST_KEY is not set, or the store failed.
        BackupError, CorruptObject: What is there is not a whole backup; nothing was signed.
    """
    store = Store.open(request.store, request.store_endpoint, allow_http=request.allow_http)
    if store.manifest_key is None:
        raise StoreError("there is no key to sign with: set DLEDGER_MANIFEST_KEY")
    found = verify(
        store.trusted(),
        request.group_id,
        progress=lambda done, total: progress(f"checked {done} of {total} entries"),
    )
    manifest.sign(store, found.group_id, found.last_index)
    return {
        "phase": COMPLETED,
        "groupId": found.group_id,
        "manifest": found.manifest,
        "firstIndex": found.first_index,
        "lastIndex": found.last_index,
        "signature": manifest.signature(store, manifest.load(store, found.group_id)),
    }
