"""What the network sees of orders being made: numbers they share, then of each option (a ready class) some; all within
`REACH`, whatever the size of the graph.

    shared   devices, classes, communication and memory; how far it is, what is open, how far the device being filled is
             filled were loads even
    option   that it is there, its seconds and bytes, what it opens and closes of what is sent, how long it is ready,
             how new what it needs is, what becomes ready by it, how near it lies to the beginning and to the end

Of more ready classes than `MOST` those with the newest needs are the options, the first of equal ones.
"""

from __future__ import annotations

import numpy as np
from torch import Tensor

from placer.strategies.policy.features import REACH
from placer.strategies.policy.network import SHIPPED as SHIPPED_LAYOUTS
from placer.strategies.policy.network import Scorer, Shown, load_scorer
from placer.strategies.policy.orders.graph_game import Counts, Floats, OrdersMade

MOST = 32
ORDERS = Shown(problem=8, decisions=1, option=13, most=MOST, hidden=48)
SIZE = ORDERS.context + MOST * ORDERS.option
SHIPPED = SHIPPED_LAYOUTS.with_name("orders.safetensors")


def load_orders_scorer() -> Scorer:
    """The shipped one. Raises PlacerError where it cannot be read."""
    return load_scorer(SHIPPED, ORDERS)


def options_of(made: OrdersMade) -> Counts:
    """The options of each order, (E, MOST): numbers of classes, -1 where there is none."""
    found = np.full((made.size, MOST), -1, dtype=np.int64)
    for row, (is_ready, newest) in enumerate(zip(made.ready_EC, made.newest_EC, strict=True)):
        (ready,) = is_ready.nonzero()
        chosen = ready[np.argsort(-newest[ready], kind="stable")[:MOST]]
        found[row, : len(chosen)] = chosen
    return found


def seen(made: OrdersMade, options: Counts) -> Floats:
    """(E, SIZE) of `options_of(made)`; zeros where there is no option."""
    shared, each = _shared(made), _of_options(made, np.maximum(options, 0))
    each *= (options >= 0)[:, :, None]
    found = np.concatenate((shared, each.reshape(made.size, -1)), axis=1)
    return np.clip(found, -REACH, REACH)


def there(numbers: Tensor) -> Tensor:
    """Which options there are, (E, MOST), by what was seen."""
    return numbers[:, ORDERS.context :: ORDERS.option] > 0


def _shared(made: OrdersMade) -> Floats:
    graph, held = made.graph, made.held_EH[:, :-1]
    is_open = (held > 0) & (held < graph.pins_H)
    found = np.zeros((made.size, ORDERS.context), dtype=np.float32)
    found[:, 0] = np.log2(graph.devices) / 4
    found[:, 1] = np.log2(graph.count) / 8
    found[:, 2] = np.log1p(graph.weight_H.sum() / graph.devices)
    found[:, 3] = np.log(max(graph.tight, 1e-2)) / 2
    found[:, 4] = made.taken / graph.count
    found[:, 5] = np.log1p(is_open @ graph.weight_H)
    found[:, 6] = made.seconds_E % 1.0
    found[:, 7] = made.ready_EC.sum(axis=1) / MOST
    found[:, ORDERS.problem] = 1.0  # the one decision there is
    return found


def _of_options(made: OrdersMade, options: Counts) -> Floats:
    """(E, MOST, numbers)."""
    graph, every = made.graph, np.arange(made.size)[:, None]
    edges, reads = graph.edges_CD[options], graph.readers_CD[options]
    weights, pins = np.append(graph.weight_H, np.float32(0))[edges], np.append(graph.pins_H, np.float32(0))[edges]
    held = made.held_EH[every[:, :, None], edges]
    opens, closes = (weights * (held == 0)).sum(axis=2), (weights * (pins - held == 1)).sum(axis=2)
    wakes = (made.missing_EC[every[:, :, None], reads] == 1).sum(axis=2)
    age, far = made.taken - made.since_EC[every, options], made.taken - made.newest_EC[every, options]
    return np.stack(
        (
            np.ones(options.shape, dtype=np.float32),
            np.log1p(graph.seconds_C[options]),
            np.log1p(graph.bytes_C[options]),
            np.log1p(opens),
            np.log1p(closes),
            np.tanh(4 * (opens - closes)),
            np.log1p(age) / 4,
            np.log1p(far) / 4,
            (far == 0).astype(np.float32),
            np.log1p(wakes),
            graph.ahead_C[options],
            graph.behind_C[options],
            ((made.seconds_E[:, None] % 1.0) + graph.seconds_C[options] > 1.0).astype(np.float32),
        ),
        axis=2,
    ).astype(np.float32)
