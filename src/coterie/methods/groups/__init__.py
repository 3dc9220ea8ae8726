"""What the method of shared and group-specific layers is made of: groups' layers, diagnostics and theory."""
