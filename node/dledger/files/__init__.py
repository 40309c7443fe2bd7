"""A small file interface, implemented by real files and by files in memory that can crash."""
