"""Speaks to Kubernetes and to the nodes' Admin service."""
