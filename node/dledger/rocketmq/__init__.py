"""The RocketMQ 5 client protocol, served by every node. Built by `server.wiring`."""
