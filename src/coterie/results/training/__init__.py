"""Training from a configuration: data, model, method and engine, runs with callbacks, and comparisons of methods."""
