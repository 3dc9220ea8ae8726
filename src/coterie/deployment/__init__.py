"""A federation of several owners of data: its folder, what runs at a site, and what an operator is told."""
