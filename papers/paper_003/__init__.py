"""A fast training framework for federated models with a personalised component: updates of few runs and values."""
