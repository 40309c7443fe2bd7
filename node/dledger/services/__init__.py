"""The ``dledger.v1`` services: Ledger, Topics, Admin."""
