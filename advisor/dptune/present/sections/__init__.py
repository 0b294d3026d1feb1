"""The sections of a text report, each formatted by itself."""
