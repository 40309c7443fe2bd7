"""Real node processes under faults, histories of what clients saw, and checkers of both."""

import os

os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")  # before gRPC is imported: its
# handlers for forks have nothing to do in a program that starts others, and say so every time
