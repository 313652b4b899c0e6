"""Argo Workflows: a job as Workflows, and the port `Executor` made of their pods."""
