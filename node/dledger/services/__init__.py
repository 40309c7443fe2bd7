"""The ``dledger.v1`` services: Ledger, Topics, Admin. Built by `server.wiring` and the node."""
