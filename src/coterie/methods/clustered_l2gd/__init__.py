"""What Async-L2GD and Async-AL2SGD+ are made of: coins, messages, theory, and a fit from a table."""
