"""How the ranks leave the script once everything is recorded, and what is on disk then."""
