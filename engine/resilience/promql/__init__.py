"""PromQL: text to tree to values. What only reads expressions imports no NumPy."""
