"""The door: gRPC over HTTP/2 by libnghttp2, on the node's event loop. Knows nothing of RocketMQ."""
