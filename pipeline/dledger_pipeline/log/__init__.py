"""Log records and messages as columns; segment files; Export."""
