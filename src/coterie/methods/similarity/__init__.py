"""How alike clients are, and the network of those that are most alike."""
