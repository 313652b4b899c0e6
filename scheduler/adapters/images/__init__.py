"""Container registries: which digest a tag stands for."""
