"""Notes on shared and group-specific layers: one augmented model for groups of clients."""
