"""Speaks Slack for gpujob; decides nothing."""
