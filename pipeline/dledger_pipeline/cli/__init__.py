"""The ``dledger-pipeline`` command, with a module for each family of subcommands."""
