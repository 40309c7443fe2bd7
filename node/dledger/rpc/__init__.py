"""What all gRPC doors share: generated code, the error table, checks, limits, channels."""
