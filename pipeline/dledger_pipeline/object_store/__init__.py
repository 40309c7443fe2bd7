"""Where backups are kept: directories and buckets."""
