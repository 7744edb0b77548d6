"""Speed, measured so that it means something: alternating in one process, as ratios, with their spread."""
