"""The sans-I/O Raft core: values in, values out."""
