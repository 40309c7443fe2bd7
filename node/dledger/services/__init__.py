"""The ``dledger.v1`` services: Ledger, Topics, Admin. Built by the gateway and the node."""
