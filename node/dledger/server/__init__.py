"""One node's process: settings, ports, identity; wires all other rooms."""
