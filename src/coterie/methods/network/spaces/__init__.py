"""Where clients are compared: their data, the dependence of their columns, or their models (seed 003, IV-A)."""
