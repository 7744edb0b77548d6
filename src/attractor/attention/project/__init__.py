"""Stage 1, project: x to q, k, v."""
