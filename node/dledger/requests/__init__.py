"""What client requests need of their node, in either protocol: topics, the leader, room."""
