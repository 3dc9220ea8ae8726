"""Machinery of the similarity network: spaces, exact solver, path, and how gradients travel."""
