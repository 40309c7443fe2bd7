"""The RocketMQ 5 client protocol, spoken by every node."""
