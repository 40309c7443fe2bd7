"""Reading the whole log in turn, slowly, to find rot while there are still peers to mend it.

Owned by the node, beside its driver; what it finds is repaired by `refetch`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from dledger.common.metrics import NodeMetrics
from dledger.errors import StorageError
from dledger.store.commit_log import CommitLog

logger = logging.getLogger(__name__)

_STEP_BYTES: Final = 256 << 10
_RECORDS_PER_S: Final = 5000
"""A bound besides the bytes: small records cost time, not bandwidth."""
_PAUSE_S: Final = 10.0
"""Between two rounds, and while the log is empty."""


class Scrubber:
    """Goes round and round the log.

    Args:
        bytes_per_s: How much may be read; at least 1.
        on_failed: Called when the disk fails, once.
    """

    def __init__(
        self,
        log: CommitLog,
        *,
        bytes_per_s: int,
        on_failed: Callable[[BaseException], None],
        metrics: NodeMetrics,
    ) -> None:
        self._log = log
        self._bytes_per_s = bytes_per_s
        self._on_failed = on_failed
        self._metrics = metrics

    async def run(self) -> None:
        """Scrub until cancelled, or until the disk fails."""
        index = 0
        step_bytes = min(_STEP_BYTES, self._bytes_per_s)
        while True:
            try:
                done = await asyncio.to_thread(self._log.scrubber.scrub, index, step_bytes)
            except StorageError as error:
                self._on_failed(error)
                return
            self._metrics.scrubbed_bytes.inc(done.size_bytes)
            index = done.next_index
            took_s = max(done.size_bytes / self._bytes_per_s, done.records / _RECORDS_PER_S)
            await asyncio.sleep(took_s if index else _PAUSE_S)
