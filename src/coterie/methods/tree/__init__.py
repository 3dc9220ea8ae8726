"""What the exact methods are made of: the tree above the clients, solved by sums, and the search for its variances."""
