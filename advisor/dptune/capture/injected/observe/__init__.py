"""What watches torch and the script, and what it records as facts."""
