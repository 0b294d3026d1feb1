"""From the files that a user names to a run: cached columns, worker processes, ranks."""
