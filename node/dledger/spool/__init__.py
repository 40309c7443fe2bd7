"""The outage spool: keeps messages on local disk while the broker group accepts no writes.

`spool.Spool` is the durable queue and `producer.Producer` sends through it; applications use
`dledger.client.SpoolingProducer`. ``docs/outage-spool.md`` has the guarantees,
``docs/internals/outage-spool.md`` the file format.
"""
