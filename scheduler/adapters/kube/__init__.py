"""Kubernetes: nodes, pods and workloads as the API server tells them, and the port `Cluster` made of these."""
