"""Kopf's handlers and the loops that reconcile."""
