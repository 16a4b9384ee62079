"""Is this model, and is this engine, fit for exact rollouts? Checks that measure, and say what to do."""
