"""Connections between nodes: handshakes, frame streams, entries for repair. Used by the server."""
