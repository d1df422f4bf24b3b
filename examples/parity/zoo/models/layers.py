"""Family 6: torch.nn of sequences: recurrent nets, attention, embeddings, activations, norms of vectors."""
# ruff: noqa: D102

from __future__ import annotations

import torch
import torch.nn.functional as f
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from examples.parity.zoo.entry import entry


class Recurrent(nn.Module):
    """A recurrent core; the head takes its last output."""

    def __init__(self, core: nn.RNNBase, width: int, *, time_first: bool = False) -> None:
        super().__init__()
        self.core, self.time_first = core, time_first
        self.head = nn.Linear(width, 4)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        out, _ = self.core(x.transpose(0, 1) if self.time_first else x)
        return f.cross_entropy(self.head(out[-1] if self.time_first else out[:, -1]), y)


def lstm() -> nn.Module:
    """One LSTM, batch first."""
    return Recurrent(nn.LSTM(5, 8, batch_first=True), 8)


def bidirectional_lstm() -> nn.Module:
    """Two layers, both ways."""
    return Recurrent(nn.LSTM(5, 8, num_layers=2, bidirectional=True, batch_first=True), 16)


def projected_lstm() -> nn.Module:
    """An LSTM with a projection."""
    return Recurrent(nn.LSTM(5, 8, proj_size=6, batch_first=True), 6)


def time_first_gru() -> nn.Module:
    """A GRU that has time first, fed a transpose."""
    return Recurrent(nn.GRU(5, 8, bidirectional=True), 16, time_first=True)


def relu_rnn() -> nn.Module:
    """A plain RNN with relu and no bias."""
    return Recurrent(nn.RNN(5, 8, nonlinearity="relu", bias=False, batch_first=True), 8)


class FinalState(nn.Module):
    """The head takes the last hidden state, permuted and flattened."""

    def __init__(self) -> None:
        super().__init__()
        self.core = nn.GRU(5, 8, num_layers=2, batch_first=True)
        self.head = nn.Linear(16, 4)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        _, h = self.core(x)
        return f.cross_entropy(self.head(h.permute(1, 0, 2).flatten(1)), y)


class GivenState(nn.Module):
    """The first state is learned and expanded over the rows."""

    def __init__(self) -> None:
        super().__init__()
        self.start = nn.Parameter(torch.zeros(1, 1, 8))
        self.core = nn.LSTM(5, 8, batch_first=True)
        self.head = nn.Linear(8, 4)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        h = self.start.expand(1, x.size(0), 8).contiguous()
        out, _ = self.core(x, (h, torch.zeros_like(h)))
        return f.cross_entropy(self.head(out.amax(1)), y)


class PackedRows(nn.Module):
    """Rows of several lengths, packed and padded again."""

    def __init__(self) -> None:
        super().__init__()
        self.core = nn.LSTM(5, 8, batch_first=True)
        self.head = nn.Linear(8, 4)

    def forward(self, x: Tensor, lengths: Tensor, y: Tensor) -> Tensor:
        packed = pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
        out, _ = pad_packed_sequence(self.core(packed)[0], batch_first=True)
        return f.cross_entropy(self.head(out.sum(1) / lengths[:, None]), y)


class CellByCell(nn.Module):
    """LSTMCell in a loop, the last two outputs of each row."""

    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.LSTMCell(5, 8)
        self.head = nn.Linear(16, 4)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        h = c = x.new_zeros(len(x), 8)
        seen = []
        for step in x.unbind(1):
            h, c = self.cell(step, (h, c))
            seen.append(h)
        return f.cross_entropy(self.head(torch.cat(seen[-2:], -1)), y)


class SelfAttention(nn.Module):
    """MultiheadAttention with a padding mask and a causal one."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Linear(5, 12)
        self.attend = nn.MultiheadAttention(12, 3, batch_first=True)
        self.head = nn.Linear(12, 4)

    def forward(self, x: Tensor, padded: Tensor, y: Tensor) -> Tensor:
        h = self.embed(x)
        causal = torch.triu(torch.ones(x.shape[1], x.shape[1], dtype=torch.bool), 1)
        keep = padded & (torch.arange(x.shape[1]) > 0)
        out, _ = self.attend(h, h, h, key_padding_mask=keep, attn_mask=causal, need_weights=False)
        return f.cross_entropy(self.head(out.mean(1)), y)


class CrossAttention(nn.Module):
    """Queries of one width, keys of another, weights kept, bias_kv and zero_attn."""

    def __init__(self) -> None:
        super().__init__()
        self.attend = nn.MultiheadAttention(8, 2, kdim=5, vdim=6, add_bias_kv=True, add_zero_attn=True)
        self.head = nn.Linear(8, 4)

    def forward(self, q: Tensor, k: Tensor, v: Tensor, y: Tensor) -> Tensor:
        out, weights = self.attend(q.transpose(0, 1), k.transpose(0, 1), v.transpose(0, 1))
        return f.cross_entropy(self.head(out.mean(0)), y) + 0.1 * weights.square().mean()


class EncoderLayers(nn.Module):
    """nn.TransformerEncoder, norm first, a final norm."""

    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(12, 2, 16, dropout=0.0, batch_first=True, norm_first=True, activation="gelu")
        self.embed = nn.Embedding(20, 12)
        self.encode = nn.TransformerEncoder(layer, 2, norm=nn.LayerNorm(12), enable_nested_tensor=False)
        self.head = nn.Linear(12, 4)

    def forward(self, tokens: Tensor, y: Tensor) -> Tensor:
        padded = tokens == 0
        h = self.encode(self.embed(tokens), src_key_padding_mask=padded & (torch.arange(tokens.shape[1]) > 0))
        return f.cross_entropy(self.head(h[:, 0]), y)


class WholeTransformer(nn.Module):
    """nn.Transformer, time first, with a mask of its own making."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(20, 12)
        self.net = nn.Transformer(12, 2, 1, 1, 16, dropout=0.0)
        self.head = nn.Linear(12, 20)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        a, b = self.embed(source).transpose(0, 1), self.embed(target[:, :-1]).transpose(0, 1)
        out = self.net(a, b, tgt_mask=nn.Transformer.generate_square_subsequent_mask(b.shape[0]))
        return f.cross_entropy(self.head(out).permute(1, 2, 0), target[:, 1:])


class DecoderMemory(nn.Module):
    """nn.TransformerDecoder over a memory of learned slots, expanded."""

    def __init__(self) -> None:
        super().__init__()
        self.slots = nn.Parameter(torch.randn(3, 12))
        self.embed = nn.Linear(5, 12)
        self.net = nn.TransformerDecoder(nn.TransformerDecoderLayer(12, 2, 16, 0.0, batch_first=True), 1)
        self.head = nn.Linear(12, 4)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        out = self.net(self.slots.repeat(len(x), 1, 1), self.embed(x))
        return f.cross_entropy(self.head(out.flatten(1)[:, :12]), y)


class Bags(nn.Module):
    """EmbeddingBag: sum, mean and max, one with weights of each sample."""

    def __init__(self) -> None:
        super().__init__()
        self.total = nn.EmbeddingBag(30, 6, mode="sum")
        self.mean = nn.EmbeddingBag(30, 6, mode="mean", padding_idx=0)
        self.most = nn.EmbeddingBag(30, 6, mode="max")
        self.head = nn.Linear(18, 4)

    def forward(self, tokens: Tensor, weights: Tensor, y: Tensor) -> Tensor:
        bags = self.total(tokens, per_sample_weights=weights), self.mean(tokens), self.most(tokens)
        return f.cross_entropy(self.head(torch.cat(bags, 1)), y)


class BagOfOffsets(nn.Module):
    """EmbeddingBag of flat tokens with offsets made from the rows."""

    def __init__(self) -> None:
        super().__init__()
        self.bag = nn.EmbeddingBag(30, 6)
        self.head = nn.Linear(6, 4)

    def forward(self, tokens: Tensor, y: Tensor) -> Tensor:
        offsets = torch.arange(0, tokens.numel(), tokens.shape[1])
        return f.cross_entropy(self.head(self.bag(tokens.reshape(-1), offsets)), y)


class BilinearPair(nn.Module):
    """nn.Bilinear and CosineSimilarity and PairwiseDistance."""

    def __init__(self) -> None:
        super().__init__()
        self.pair = nn.Bilinear(5, 6, 7)
        self.head = nn.Linear(9, 4)
        self.map = nn.Linear(5, 6)

    def forward(self, a: Tensor, b: Tensor, y: Tensor) -> Tensor:
        near = nn.CosineSimilarity(dim=1)(self.map(a), b), nn.PairwiseDistance()(self.map(a), b)
        return f.cross_entropy(self.head(torch.cat((self.pair(a, b), torch.stack(near, 1)), 1)), y)


class Vectorial(nn.Module):
    """A product, a core on vectors of 16, a head."""

    def __init__(self, core: nn.Module, width: int = 16) -> None:
        super().__init__()
        self.one, self.core, self.head = nn.Linear(8, 16), core, nn.Linear(width, 4)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return f.cross_entropy(self.head(self.core(self.one(x))), y)


class Lambda(nn.Module):
    """Maxout, and a softmin and a log-sigmoid of its halves."""

    def forward(self, h: Tensor) -> Tensor:
        most = h.view(-1, 8, 2).max(-1).values
        return torch.cat((nn.Softmin(-1)(most), f.logsigmoid(most)), -1)


def gated_activations() -> nn.Module:
    """GLU, PReLU for each channel, Softshrink, Hardswish, Mish, CELU."""
    return Vectorial(
        nn.Sequential(nn.GLU(), nn.PReLU(8), nn.Softshrink(0.1), nn.Hardswish(), nn.Mish(), nn.CELU(0.5)), 8
    )


def maxout() -> nn.Module:
    """Maxout by view and max."""
    return Vectorial(Lambda())


def odd_activations() -> nn.Module:
    """Threshold, Hardtanh, ReLU6, SELU, Tanhshrink, Softsign, one shared PReLU, Softmax(dim=1)."""
    parts = nn.Threshold(-0.5, 0.1), nn.Hardtanh(-2, 2), nn.ReLU6(), nn.SELU(), nn.Tanhshrink(), nn.Softsign()
    return Vectorial(nn.Sequential(*parts, nn.PReLU(), nn.Softmax(dim=1)))


def softmax_without_dim() -> nn.Module:
    """LogSoftmax of the wrong dim: 0."""
    return Vectorial(nn.LogSoftmax(dim=0))


def layer_norms() -> nn.Module:
    """LayerNorm, RMSNorm, LayerNorm without affine."""
    return Vectorial(nn.Sequential(nn.LayerNorm(16), nn.RMSNorm(16), nn.LayerNorm(16, elementwise_affine=False)))


def group_norm_of_vectors() -> nn.Module:
    """GroupNorm on (rows, channels)."""
    return Vectorial(nn.GroupNorm(4, 16))


def batch_norm_twice() -> nn.Module:
    """Two batch norms with a product between."""
    return Vectorial(nn.Sequential(nn.BatchNorm1d(16), nn.Linear(16, 16), nn.BatchNorm1d(16, momentum=0.3), nn.ReLU()))


def dropout_of_zero() -> nn.Module:
    """Every dropout there is, with p=0."""
    return Vectorial(nn.Sequential(nn.Dropout(0.0), nn.AlphaDropout(0.0), nn.FeatureAlphaDropout(0.0), nn.Identity()))


class WeightStandard(nn.Linear):
    """A product whose weights are standardised in forward."""

    def forward(self, input: Tensor) -> Tensor:
        w = self.weight
        return f.linear(input, (w - w.mean(1, keepdim=True)) / (w.std(1, keepdim=True) + 1e-5), self.bias)


def standard_weights() -> nn.Module:
    """Weight standardisation."""
    return Vectorial(nn.Sequential(WeightStandard(16, 16), nn.ReLU(), WeightStandard(16, 16)))


class SequenceNorm(nn.Module):
    """Batch norm over (rows, channels, length) of a transposed sequence, and InstanceNorm1d."""

    def __init__(self) -> None:
        super().__init__()
        self.one = nn.Linear(5, 8)
        self.batch, self.instance = nn.BatchNorm1d(8), nn.InstanceNorm1d(8, affine=True)
        self.head = nn.Linear(8, 4)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        h = self.one(x).transpose(1, 2)
        return f.cross_entropy(self.head((self.batch(h).relu() + self.instance(h)).amax(-1)), y)


_TIME = "x: normal 8 6 5; y: int4 8"
ENTRIES = (
    *(entry(build, _TIME) for build in (lstm, bidirectional_lstm, projected_lstm, time_first_gru, relu_rnn)),
    *(entry(build, _TIME) for build in (FinalState, GivenState, CellByCell, SequenceNorm)),
    entry(DecoderMemory, _TIME, axes=("sequence",)),
    entry(PackedRows, "x: normal 8 6 5; lengths: int1-6 8; y: int4 8"),
    entry(SelfAttention, "x: normal 8 6 5; padded: bool 8 6; y: int4 8", axes=("sequence",)),
    entry(CrossAttention, "q: normal 8 3 8; k: normal 8 4 5; v: normal 8 4 6; y: int4 8"),
    entry(EncoderLayers, "tokens: int20 8 6; y: int4 8", axes=("sequence",)),
    entry(WholeTransformer, "source: int20 8 6; target: int20 8 5"),
    entry(Bags, "tokens: int30 8 5; weights: unit 8 5; y: int4 8"),
    entry(BagOfOffsets, "tokens: int30 8 5; y: int4 8"),
    entry(BilinearPair, "a: normal 8 5; b: normal 8 6; y: int4 8"),
    *(
        entry(build, "x: normal 8 8; y: int4 8")
        for build in (
            gated_activations, maxout, odd_activations, softmax_without_dim, layer_norms, group_norm_of_vectors,
            batch_norm_twice, dropout_of_zero, standard_weights,
        )
    ),
)  # fmt: skip
