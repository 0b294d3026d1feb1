"""What several commands have in common: options, reading, consent."""
