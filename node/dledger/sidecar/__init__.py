"""The spool sidecar: `dledger spool run`, beside an application in any language.

`parent` holds the listening sockets and imports nothing but the standard library; `child` does the
rest and may be restarted. ``docs/outage-spool.md`` has what is promised, ``docs/adr/0067`` why.
"""
