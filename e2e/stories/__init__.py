"""Stories on a real Kubernetes cluster."""
