"""The gate for CI: impact, confidence, budgets and baselines."""
