"""A deployed federation over Flower."""
