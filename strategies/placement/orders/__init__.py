"""Contiguous placements by search over orders, without a proof: `local` and `genetic` of `placer place`.

cuts       the best cuts of one order of the classes, exactly: what an order is worth
orders     orders to begin with, and moves that keep them orders
local      one order, moved as long as that helps
genetic    many orders, crossed, moved and selected by DEAP
answer     both as answers of `placer place`, and those of other searches over orders (`policy.orders`)
"""
