"""``make bench``: what a group does here, beside its peers, and what bounds it.

Measurements are values (`rows`); each kind has its own module. Servers and the programs that load
them are child processes of the bench: our nodes, Java DLedger, etcd. All of them listen on
loopback and end with the bench.
"""
