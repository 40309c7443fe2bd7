"""One running replica: orders disk, network and apply around Raft."""
