"""Training: one readable loop, its optimizer, its checkpoints, its console."""
