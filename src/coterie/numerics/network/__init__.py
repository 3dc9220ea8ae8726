"""The prox of a similarity network: the checked problem and its duality gap, kernels over edges, two solvers."""
