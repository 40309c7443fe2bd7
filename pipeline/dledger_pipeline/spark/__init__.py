"""The Spark session and the ``dledger`` data source."""
