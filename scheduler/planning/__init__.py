"""Who gets which GPUs, and who gives them back."""
