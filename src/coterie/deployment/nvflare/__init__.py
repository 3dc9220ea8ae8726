"""A deployed federation over NVFlare."""
