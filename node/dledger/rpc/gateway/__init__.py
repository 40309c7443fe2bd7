"""The RocketMQ 5 client protocol (`Gateway`), spoken by every node."""

from dledger.rpc.gateway.config import GatewayConfig
from dledger.rpc.gateway.gateway import Gateway, Load

__all__ = ["Gateway", "GatewayConfig", "Load"]
