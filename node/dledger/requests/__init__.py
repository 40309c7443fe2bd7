"""What every client request passes, whichever protocol: admission, catalog, forwarding."""
