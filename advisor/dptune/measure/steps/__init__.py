"""Which steps there are, which of them are steady, and how long they take."""
