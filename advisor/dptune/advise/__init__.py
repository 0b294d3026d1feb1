"""Trust, packs, engine, ranking."""
