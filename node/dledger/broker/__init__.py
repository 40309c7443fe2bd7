"""The replicated state machine: commands, topics, consume queues, consumer groups, deliveries.

Pure and deterministic. Called by `replica`, which applies committed entries, and by the servicers,
which encode commands and query the state.
"""
