"""Door processes: they serve the client ports for a node, and pass it what only it can do."""
