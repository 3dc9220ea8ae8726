"""The pieces of ``network_prox``: the checked problem, kernels over edges, certificates, solvers."""
