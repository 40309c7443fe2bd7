"""Between nodes: greetings, streams of frames, refetched entries."""
