"""The ``dledger`` command, with one module for each subcommand."""
