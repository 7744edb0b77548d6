"""What run folders say, in words, tables and pictures. Stands on evidence alone: no model, no torch."""
