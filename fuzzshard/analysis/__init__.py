"""What follows from a Case without running it: widths, dtypes, layouts, the autograd graph, where
a schedule stands at each op, which cases are legal. Without torch.
"""
