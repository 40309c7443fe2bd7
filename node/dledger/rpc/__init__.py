"""Shared by gRPC services and clients: generated code, error table, checks, limits, channels."""
