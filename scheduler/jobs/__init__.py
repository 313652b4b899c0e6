"""What people ask for and what became of it."""
