"""Evidence: every method on the same held-out rows, and paired differences with intervals over clients and seeds."""
