"""What the searches of both products are made of, and knows neither: ideals, fronts, the knapsack, cuts of a chain."""
