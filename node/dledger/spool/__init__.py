"""The outage spool: messages on local disk while the broker group takes none.

`spool.Spool` is the durable queue, `producer.Producer` what sends through it; users meet it as
`dledger.client.SpoolingProducer`. What is promised: ``docs/outage-spool.md``; the bytes:
``docs/internals/outage-spool.md``.
"""
