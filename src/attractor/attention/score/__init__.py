"""Stage 3, score: queries against keys, and the values they select."""
