"""Observes, decides, acts and remembers; never speaks Slack."""
