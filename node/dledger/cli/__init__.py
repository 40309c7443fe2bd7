"""What the ``dledger`` command runs, a file for each subcommand."""
