"""Back up, compact, verify and restore the committed log of a broker group."""
