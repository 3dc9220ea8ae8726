"""Clients' losses with a penalty on differences over the edges of a network: exact solver, path, and gradients' way."""
