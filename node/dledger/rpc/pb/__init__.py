"""Generated protobuf code; regenerate with `make proto`."""
