"""Messages as tables of others' engines: their columns, their files, and how these get in."""
