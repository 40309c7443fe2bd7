"""``make demo`` and ``make demo-backup``."""
