"""The learned policy for graphs with given costs: it orders the classes, of those that are ready one after the other;
where the order is cut is `placement.orders.cuts`'s, exactly.

graph_game    several orders being made at once, as arrays
numbers_seen  what the network sees of them
playing       orders played by a scorer, which is bent towards the best of them
answer        that as an answer: `placer place --strategy policy`
drawn_graphs  problems to learn from and to be judged on, by seed
environment   the game for gymnasium, one order at a time: python -m placer.strategies.policy.train --game orders
"""
