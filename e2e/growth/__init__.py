"""``make growth``: what a group costs once it has lived for a year, and whether it bears it."""
