"""How a dataset comes to be: recipes, plans, commits and the run of them."""
