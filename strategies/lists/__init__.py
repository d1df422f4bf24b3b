"""List schedulers and partitioners, the classic baselines: one abstract problem, two sources of it.

task_graph       the problem: tasks with seconds per device, edges with bytes, links, memory, groups
schedule         a schedule while it is made: who is where until when, which devices may take a task
ranked           the longest way first: HEFT, critical path
earliest         the earliest start first: m-ETF and m-SCT, whose linear program is in `favourites`
loads            by seconds alone: greedy by load, the best single device
metis            the least edge weight between parts of equal seconds (pymetis)
methods          the table of all of these

from_blocks      the problem of a captured model's blocks; `strategies` are its answers as plans
from_file        the problem of a placement file; its answers for `placer place`
"""
