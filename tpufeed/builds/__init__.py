"""Build a dataset: recipes, plans, commits, and the run of a recipe."""
