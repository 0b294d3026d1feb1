"""What measure and advise return, formatted; nothing is computed here."""
