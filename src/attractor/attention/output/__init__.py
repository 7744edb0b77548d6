"""Stage 4, output: the contexts of all heads become one vector again."""
