"""What the methods over rounds are made of: coins, what is said in a round, theory, and a fit from a table."""
