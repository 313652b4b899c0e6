"""How the outside answers."""
