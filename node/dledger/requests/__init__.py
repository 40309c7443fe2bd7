"""What every client request passes, in either protocol: admission, topic lookup, forwarding."""
