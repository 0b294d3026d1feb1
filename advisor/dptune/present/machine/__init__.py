"""Formats that programs read: JSON, JUnit, Markdown, annotations of GitHub Actions."""
