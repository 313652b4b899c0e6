"""The story of one night, told by the real programs on this computer; it uses nothing of ours but the entry points."""
