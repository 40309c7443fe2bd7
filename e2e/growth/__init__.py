"""``make growth``: what a group costs after a year of use, and whether its bounds hold."""
