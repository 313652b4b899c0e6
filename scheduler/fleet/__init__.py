"""What the GPUs do, and what they will be wanted for."""
