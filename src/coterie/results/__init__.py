"""What a run leaves: models, results, comparisons, and what they say in numbers."""
