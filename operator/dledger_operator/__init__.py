"""The Kubernetes operator: observe, plan, act."""
