"""What a fit leaves: results, their tables and predictions, what they say in words, and how they are saved."""
