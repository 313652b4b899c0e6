"""Kubernetes and Argo, played by processes on this computer; all truth is in files, so any process may die."""
