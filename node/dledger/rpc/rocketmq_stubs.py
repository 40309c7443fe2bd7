"""The RocketMQ protocol's generated messages, without the SDK that ships them.

Importing ``rocketmq.grpc_protocol`` normally runs ``rocketmq/__init__.py``, which starts the client
SDK and creates a log directory in the home directory. A node does not need the SDK, and its file
system is read-only. So the package's ``__init__`` is skipped while the two generated modules load;
a process that has imported the SDK already shares its modules. Their types are in ``stubs/``.
"""

from __future__ import annotations

import sys
from importlib import import_module
from importlib.util import find_spec, module_from_spec
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rocketmq.grpc_protocol import definition_pb2 as definition
    from rocketmq.grpc_protocol import service_pb2 as service

__all__ = ["SERVICE_NAME", "definition", "service"]

_PACKAGE = "rocketmq"
SERVICE_NAME = "apache.rocketmq.v2.MessagingService"


def _load() -> tuple[ModuleType, ModuleType]:
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


if not TYPE_CHECKING:
    definition, service = _load()
"""``apache.rocketmq.v2`` messages and enums, and the requests and responses of the service."""
