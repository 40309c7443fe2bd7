"""``make clients``: the official RocketMQ 5 clients, unmodified, as users of real nodes."""
