"""Step sizes, weights and bounds by theorem, as functions of constants."""
