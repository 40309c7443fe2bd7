"""Spec and observed state to the next actions. Pure."""
