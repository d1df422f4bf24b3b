"""What is timed while all devices are at work, in step: every rank starts a timing at the same moment and all agree how
long to go on.

Of each device the rates of products by size and dtype, of memory, seconds per op; of all together the seconds of
messages between pairs of processes and of all-reduces over all, by size.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from statistics import fmean, median
from typing import TypeVar

import torch
import torch.distributed as dist
from torch.nn import functional

from placer.cluster.calibrate.device_calls import Calls, recorded
from placer.cluster.calibrate.machine import usable_cores
from placer.cluster.calibrate.result import AttentionTime

Value = TypeVar("Value")
# Seconds after which every timing is taken once instead of three times, and after which only what is needed is timed.
PATIENCE = 15.0
# A GPU repeats a kernel's seconds, and there are more of them to be timed.
GPU_WINDOW = 0.02
HURRY = 30.0
# A window counts where every rank had its core for this share of it; so often another is taken where one had not.
LEAST_SHARE, AGAIN = 0.95, 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Together:
    """The ranks that measure, seen from one of them."""

    rank: int
    size: int
    device: torch.device

    begun: float = field(default_factory=time.monotonic)
    #: Of each window that counted, the share of it in which the rank that had least of its core had it.
    shares: list[float] = field(default_factory=list)

    @property
    def on_gpu(self) -> bool:
        """Whether the ranks measure GPUs."""
        return self.device.type == "cuda"

    @property
    def alone(self) -> bool:
        """Whether each rank is one thread and has a core for it, so that it is seen when other work takes that."""
        return not self.on_gpu and torch.get_num_threads() == 1 and self.size <= usable_cores()

    @property
    def lost(self) -> float:
        """The share of the cores' time that other work took while windows ran; 0 where that is not seen."""
        return 1 - fmean(self.shares) if self.alone and self.shares else 0.0

    def seconds(self, action: Callable[[], object], *, window: float = 0.08) -> float:
        """Seconds per call of `action` while all ranks call it: the median over some windows of wall time.

        Windows, not best times: where processes share cores a single call may have had a core to itself. One in which
        other work took a rank's core is taken again. A crowded machine gets fewer windows, so that the whole stays
        short. On a GPU those of its kernels, without the host's for launching them.
        """
        action()
        self.synchronize()
        calls = recorded(action) if self.on_gpu else Calls(run=action)
        window = min(window, GPU_WINDOW) if self.on_gpu else window
        late = self.later_than(PATIENCE)
        return median(self._undisturbed(calls.run, window, late) for _ in range(1 if late else 3)) / calls.count

    def later_than(self, seconds: float) -> bool:
        """Whether any rank has been at it for longer; all ranks get the same answer."""
        return self.slowest(time.monotonic() - self.begun) > seconds

    def _undisturbed(self, action: Callable[[], object], window: float, late: bool) -> float:
        """Seconds per call in the first window of some that no other work disturbed, else in the least disturbed."""
        best, most = 0.0, -1.0
        for _ in range(1 + AGAIN * (self.alone and not late)):
            dist.barrier()
            had = time.thread_time()
            begun = time.perf_counter()
            seconds = self._window(action, window)
            share = (time.thread_time() - had) / (time.perf_counter() - begun)
            share = 1 - self.slowest(1 - share)
            if share > most:
                best, most = seconds, share
            if share >= LEAST_SHARE:
                break
        self.shares.append(most)
        return best

    def _window(self, action: Callable[[], object], window: float) -> float:
        calls, batch, begun = 0, 1, time.perf_counter()
        while True:
            for _ in range(batch):
                action()
            self.synchronize()
            calls += batch
            elapsed = time.perf_counter() - begun
            if elapsed >= window:
                return elapsed / calls
            batch = max(1, min(calls, int(calls * (window - elapsed) / elapsed)))

    def synchronize(self) -> None:
        """Wait for the device."""
        if self.on_gpu:
            torch.cuda.synchronize(self.device)

    def slowest(self, seconds: float) -> float:
        """The largest of the ranks' values, the same on all."""
        value = torch.tensor([seconds], dtype=torch.float64, device=self.device)
        dist.all_reduce(value, op=dist.ReduceOp.MAX)
        return float(value.item())

    def smallest(self, value: float) -> float:
        """The smallest of the ranks' values, the same on all."""
        return -self.slowest(-value)

    def gather(self, value: Value) -> list[Value]:
        """Every rank's value."""
        found: list[Value | None] = [None] * self.size
        dist.all_gather_object(found, value)
        return [item for item in found if item is not None]

    def progress(self, text: str) -> None:
        """Tell what is measured now."""
        if self.rank == 0:
            print("progress", text, flush=True)


def memory_bandwidth(together: Together) -> float:
    """Bytes/second of an elementwise sum into a given tensor: the best a memory-bound op reaches."""
    together.progress("memory bandwidth")
    a, b, out = (_tensor(together) for _ in range(3))
    return 3.0 * a.nbytes / together.seconds(lambda: torch.add(a, b, out=out))


def mixed_bandwidth(together: Together) -> float:
    """Bytes/second over the memory-bound ops of a model, each with a new result: sum, GELU, softmax, layer norm.

    On processors their arithmetic and the allocation of results cost several times what the bytes do.
    """
    together.progress("memory-bound ops")
    a, b = _tensor(together), _tensor(together)
    ops: tuple[tuple[float, Callable[[], torch.Tensor]], ...] = (
        (3.0, lambda: torch.add(a, b)),
        (2.0, lambda: functional.gelu(a)),
        (2.0, lambda: torch.softmax(a, -1)),
        (2.0, lambda: functional.layer_norm(a, (a.shape[-1],))),
    )
    seconds = sum(together.seconds(op) for _, op in ops)
    return sum(tensors for tensors, _ in ops) * a.nbytes / seconds


# Attention of a usual size and of a small one: rows, heads, tokens, and the elements of a head, that most models have
# (Llama 3 and GPT-3 have 128 of them, GPT-2, BERT and ViT 64).
HEADS = (2, 12, 512, 64)
SHORT_HEADS = (8, 12, 64, 64)
# On a GPU, many: a head of a row is a tile's work, and the scores of few do not fill the chip. Its backward has five
# products where forward has two, as it makes the scores again (arXiv:2307.08691, section 3.1).
LONG_HEADS = (8, 16, 2048, 64)
GPU_BACKWARD = 2.5


def attention(together: Together) -> AttentionTime | None:
    """Fused attention in float32, on a GPU in bfloat16; None where time is up.

    On processors its kernel makes blocks of scores one after another: slower than a large product, much so backward,
    and with work of its own for each head of a row, which is most of it where rows are short.
    """
    if together.later_than(HURRY):
        return None
    together.progress("attention")
    if together.on_gpu:
        # Causal attention leaves out half of the scores, but for blocks on the diagonal.
        ahead, behind = (_attention_flops(LONG_HEADS) / 2 / own for own in _attention_seconds(together, LONG_HEADS))
        return AttentionTime(rates=(ahead, GPU_BACKWARD * behind), head_seconds=(0.0, 0.0))
    long, short = _attention_seconds(together, HEADS), _attention_seconds(together, SHORT_HEADS)
    forward, backward = (_line(one, other) for one, other in zip(short, long, strict=True))
    return AttentionTime(rates=(forward[1], 2 * backward[1]), head_seconds=(forward[0], backward[0]))


def _line(short: float, long: float) -> tuple[float, float]:
    """Seconds of a head beside its products, and their FLOP/s, from those of a head in rows of both sizes."""
    few, many = _attention_flops(SHORT_HEADS), _attention_flops(HEADS)
    rate = (many - few) / max(long - short, long / 2)
    return max(0.0, long - many / rate), rate


def _attention_flops(sizes: tuple[int, int, int, int]) -> float:
    """FLOPs of a head of a row, forward."""
    _, _, tokens, width = sizes
    return 2 * 2.0 * tokens * tokens * width


def _attention_seconds(together: Together, sizes: tuple[int, int, int, int]) -> tuple[float, float]:
    """Seconds of a head of a row, forward and backward."""
    dtype = torch.bfloat16 if together.on_gpu else torch.float32
    given = (q, k, v) = tuple(
        torch.randn(sizes, device=together.device, dtype=dtype, requires_grad=True) for _ in range(3)
    )

    def ahead() -> torch.Tensor:
        return functional.scaled_dot_product_attention(q, k, v, is_causal=True)

    slope, heads = torch.ones_like(ahead()), sizes[0] * sizes[1]
    with torch.no_grad():
        forward = together.seconds(ahead)
    both = together.seconds(lambda: torch.autograd.grad(ahead(), given, slope))
    return forward / heads, max(both - forward, forward) / heads


def _tensor(together: Together) -> torch.Tensor:
    """An activation of a usual size: 4 MiB on a processor, 64 MiB on a GPU (larger than its caches)."""
    rows = 16 * 1024 if together.on_gpu else 1024
    return torch.randn(rows, 1024, device=together.device)


def launch_seconds(together: Together) -> float:
    """Seconds of one op that has nothing to do: a chain of small products, forward and backward; of a GPU's kernel."""
    together.progress("seconds per op")
    x = torch.ones(16, device=together.device, requires_grad=not together.on_gpu)
    if together.on_gpu:
        return together.seconds(lambda: x * 1.0)
    length = 50

    def chain() -> None:
        y = x
        for _ in range(length):
            y = y * 1.0
        torch.autograd.backward(y.sum())

    return together.seconds(chain) / (2 * length)


def repeated_steps(together: Together, *, seconds: float, count: int) -> tuple[float, ...]:
    """The seconds of each of `count` steps of the same work, about `seconds` each; no rank waits for another."""
    together.progress("steps")
    edge = 1024 if together.on_gpu else 256
    a, b = (torch.randn(edge, edge, device=together.device) for _ in range(2))
    calls = max(1, round(seconds / together.slowest(together.seconds(lambda: torch.mm(a, b)))))
    found = []
    dist.barrier()
    for _ in range(count):
        begun = time.perf_counter()
        for _ in range(calls):
            torch.mm(a, b)
        together.synchronize()
        found.append(time.perf_counter() - begun)
    return tuple(found)


SIZES = (1 << 12, 1 << 16, 1 << 19, 1 << 22, 1 << 24)
# Of the product that is computed between two communications: some milliseconds, as a layer of a small model takes.
EDGE = 768


def messages(together: Together) -> tuple[tuple[float, float], ...]:
    """(bytes, seconds one way) of a ping-pong in pairs, all pairs at once; empty for a rank without a partner."""
    if together.size < 2:
        return ()
    together.progress("messages")
    partner, between = together.rank ^ 1, _between(together)
    found = []
    for size in SIZES:
        buffer = torch.ones(size // 4, device=together.device)
        alone = partner >= together.size
        talk = _nothing if alone else _ping_pong(together.rank, partner, buffer)
        found.append((float(size), _repeated(together, talk, between) / 2))
    return () if partner >= together.size else tuple(found)


def all_reduces(together: Together) -> tuple[tuple[float, float], ...]:
    """(bytes, seconds) of an all-reduce over all processes."""
    if together.size < 2:
        return ()
    together.progress("all-reduce")
    found, between = [], _between(together)
    for size in SIZES:
        buffer = torch.zeros(size // 4, device=together.device)
        summed = _repeated(together, lambda buffer=buffer: dist.all_reduce(buffer), between)  # type: ignore[misc]
        found.append((float(size), summed))
    return tuple(found)


def _nothing() -> None:
    """What is done where there is nothing to do."""


def _between(together: Together) -> Callable[[], object]:
    """What ranks compute between two communications.

    On processors, as in a step: then a rank waits for one that computed longer, threads that slept are woken, and no
    buffer is where the last message left it, which takes several times what a short message does. Nothing on a GPU,
    whose stream has the next communication before the last one ends.
    """
    if together.on_gpu:
        return _nothing
    a, b, more = torch.randn(EDGE, EDGE), torch.randn(EDGE, EDGE), _tensor(together)

    def layer() -> None:
        torch.mm(a, b)
        more.add_(1.0)

    return layer


def _ping_pong(rank: int, partner: int, buffer: torch.Tensor) -> Callable[[], None]:
    """One message there and one back."""

    def there_and_back() -> None:
        if rank < partner:
            dist.send(buffer, partner)
            dist.recv(buffer, partner)
        else:
            dist.recv(buffer, partner)
            dist.send(buffer, partner)

    return there_and_back


def _repeated(
    together: Together, action: Callable[[], object], between: Callable[[], object], window: float = 0.25
) -> float:
    """Seconds per call of `action`, without those of what is done `between`; all ranks call equally often, since each
    call needs its partners."""
    for _ in range(2):
        action()
    calls, spent, passed, batch = 0, 0.0, 0.0, 3
    enough = 0.0 if together.later_than(HURRY) else window
    while calls == 0 or (passed < enough and calls < 2000):
        together.synchronize()
        dist.barrier()
        begun = time.perf_counter()
        spent += _timed(together, action, between, batch)
        passed = together.slowest(passed + time.perf_counter() - begun)
        calls += batch
        batch = max(1, min(500, int(calls * (window - passed) / max(passed, 1e-9))))
    return spent / calls


def _timed(together: Together, action: Callable[[], object], between: Callable[[], object], calls: int) -> float:
    """Seconds of so many calls of `action`."""
    if between is _nothing:
        begun = time.perf_counter()
        for _ in range(calls):
            action()
        together.synchronize()
        return time.perf_counter() - begun
    spent = 0.0
    for _ in range(calls):
        between()
        begun = time.perf_counter()
        action()
        spent += time.perf_counter() - begun
    return spent
