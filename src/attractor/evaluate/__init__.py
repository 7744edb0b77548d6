"""Evaluate any causal model, ours or not: likelihoods of texts, measures of what happens inside, answers on boards."""
