"""How alike clients are, and losses with a penalty on differences along a network: exact solver, path, gradients."""
