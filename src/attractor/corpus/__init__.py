"""Text on disk, up to the tokens of it: where documents come from, and how they are spelled in tokens."""
