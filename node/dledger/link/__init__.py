"""The link between two processes that pass clients' calls on: its frames, its ends, who has one.

From a follower to its leader (`follower`, `leader`), and from a door process to its node
(`dledger.door_process`), which adds frames of its own.
"""
