"""Bytes on disk: records, segments, the commit log and hard state."""
