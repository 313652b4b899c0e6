"""Container registries: which digest a tag stands for."""

from scheduler.adapters.images.images import RegistryImages as RegistryImages
