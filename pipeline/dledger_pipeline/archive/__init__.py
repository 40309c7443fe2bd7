"""Backups in a store: objects, manifests, restore, verify."""
