"""What the owner of rows runs: a site, which answers a coordinator by its owner's rules."""
