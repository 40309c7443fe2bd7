"""What stories, demos and benchmarks share: groups, workloads, a cluster's world."""
