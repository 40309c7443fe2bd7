"""What every client request passes, whichever protocol: admission, resolver, forwarding."""
