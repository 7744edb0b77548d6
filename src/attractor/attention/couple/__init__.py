"""Stage 2, couple: queries and keys of one position meet before they are scored."""
