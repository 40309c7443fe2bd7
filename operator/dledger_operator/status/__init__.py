"""Observed state to conditions and status. Pure."""
