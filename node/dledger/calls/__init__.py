"""The one way of a call: who calls, what rules say, here or to the leader, settled, answered."""
