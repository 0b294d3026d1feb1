"""Search for changes that make a script faster: which to try, when to keep one, and what all of them save."""
