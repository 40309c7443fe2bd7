"""One node's process: settings, ports, identity. It wires all other packages together."""
