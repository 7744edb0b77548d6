"""Reports on runs, studies and claims: words, tables, figures and pages. Nothing here imports a model or torch."""
