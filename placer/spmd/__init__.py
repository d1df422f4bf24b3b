"""A graph as one device of a replica sees it: the ops of each block cut by rule, collectives where layouts disagree.

`layout_conversions` says which value must change its layout for whom; the costs and the runtime both act on it.
`device_graph` is the graph of one device, so that everything that reckons with graphs reckons with cut ones.
"""
