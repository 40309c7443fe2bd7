"""Clusters for tests, stories told on them, the demo and the bench."""
