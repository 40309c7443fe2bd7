"""A Raft-replicated commit log that speaks the RocketMQ 5 protocol."""
