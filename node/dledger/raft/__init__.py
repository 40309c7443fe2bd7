"""The sans-I/O Raft core: values in, values out.

`core.Raft` takes messages, ticks and proposals; `ready.Ready` is what its caller has to do, and
numbers the duties. How such a caller looks, from the loop to a group of three that elects a leader
and agrees, is in docs/internals/driving-raft.md, which a test runs.
"""
