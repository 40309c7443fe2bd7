"""What was seen of the cluster, as frozen values. Pure."""
