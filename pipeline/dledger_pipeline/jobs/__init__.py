"""The commands' work: each job takes a request, does it, and returns a result."""
