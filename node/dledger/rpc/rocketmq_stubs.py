"""The RocketMQ protocol's generated messages, without the SDK that ships them.

Importing ``rocketmq.grpc_protocol`` normally runs ``rocketmq/__init__.py``, which starts the client
SDK and creates a log directory in the home directory. A node does not need the SDK, and its file
system is read-only. So the package's ``__init__`` is skipped while the two generated modules load;
a process that has imported the SDK already shares its modules.
"""

from __future__ import annotations

import sys
from importlib import import_module
from importlib.util import find_spec, module_from_spec
from typing import Any

_PACKAGE = "rocketmq"
SERVICE_NAME = "apache.rocketmq.v2.MessagingService"


def _load() -> tuple[Any, Any]:
    spec = None if _PACKAGE in sys.modules else find_spec(_PACKAGE)
    if spec is not None:
        sys.modules[_PACKAGE] = module_from_spec(spec)
    try:
        definition = import_module("rocketmq.grpc_protocol.definition_pb2")
        service = import_module("rocketmq.grpc_protocol.service_pb2")
    finally:
        if spec is not None:
            del sys.modules[_PACKAGE]
    return definition, service


definition, service = _load()
"""``apache.rocketmq.v2`` messages and enums, and the requests and responses of the service."""
