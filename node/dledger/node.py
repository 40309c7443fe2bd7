"""One node's life: identity, founding or joining a group, servers, shutdown.

The one place that builds the real clock, files, threads and network. A node whose disk is empty
is Unjoined: it answers Status and waits, until Admin.Bootstrap founds a group with it or a
member that knows its UUID greets it.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import logging
import os
import random
import shutil
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import grpc.aio
import uvloop

from dledger import config
from dledger.broker.state import BrokerState
from dledger.client import MemberStatus, NodeStatus
from dledger.config import ConfigError, Settings
from dledger.driver import Driver, DriverConfig
from dledger.errors import (
    AlreadyBootstrapped,
    InvalidArgument,
    NotJoined,
    NotLeader,
    StorageError,
)
from dledger.founding import Founding, FoundingFile
from dledger.http import HealthServer
from dledger.metrics import NodeMetrics
from dledger.raft.core import RaftConfig
from dledger.raft.messages import Message
from dledger.rpc.hello import Hello, NodeAddress, check
from dledger.rpc.peers import Peers
from dledger.rpc.servers import Servers
from dledger.store.commit_log import CommitLog
from dledger.store.files import RealFiles
from dledger.store.hard_state import HardStateFile
from dledger.store.identity import IdentityFile
from dledger.types import Entry, HardState, Member, Membership, NodeId, Role
from dledger.version import VERSION

logger = logging.getLogger(__name__)

_EXIT_FATAL: Final = 1
_EXIT_CONFIG: Final = 2
_EXIT_DATA: Final = 3
_HOUSEKEEPING_S: Final = 0.5
_STALLED_S: Final = 5.0
_MAX_APPLY_LAG: Final = 10_000
_TRANSFER_DEADLINE_S: Final = 3.0


class RealClock:
    """The machine's clocks."""

    def monotonic_s(self) -> float:
        """Return `time.monotonic`."""
        return time.monotonic()

    def unix_ms(self) -> int:
        """Return the wall clock in Unix milliseconds."""
        return time.time_ns() // 1_000_000
