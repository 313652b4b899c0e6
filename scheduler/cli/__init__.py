"""How a person or a container starts gpujob."""
