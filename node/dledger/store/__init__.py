"""The node's data directory: the commit log and its segments, hard state, identity, snapshots.

Owns every byte that a node writes. Called by `replica`, by start-up and by the offline commands.
"""
