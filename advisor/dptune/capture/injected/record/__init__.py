"""The windows of a recording: which step begins and ends them, and what is written."""
