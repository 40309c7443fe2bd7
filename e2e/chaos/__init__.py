"""Real node processes under faults, histories of what clients saw, and checkers of both."""
