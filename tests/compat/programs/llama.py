"""LLaMA's block: RMS norms, rotary embeddings, grouped heads and a gated feed-forward layer."""
from tinygrad import Tensor, dtypes, nn

DIM, HEADS, KV, SIZE = 16, 4, 2, 4


def precompute_freqs_cis(dim, end, theta=10000.0):
    freqs = 1.0 / (theta ** (Tensor.arange(0, dim, 2)[:(dim // 2)] / dim))
    freqs = Tensor.arange(end).unsqueeze(dim=1) * freqs.unsqueeze(dim=0)
    return Tensor.stack(freqs.cos(), freqs.sin(), dim=-1).reshape(1, end, 1, dim // 2, 2)


def complex_mult(a, c, d):
    x, y = a[..., 0:1], a[..., 1:2]
    return (x * c - y * d).cat(x * d + y * c, dim=-1)


def apply_rotary_emb(x, freqs_cis):
    x = x.reshape(*x.shape[0:-1], -1, 2)
    return complex_mult(x, freqs_cis[..., 0:1], freqs_cis[..., 1:2]).flatten(3)


def repeat_kv(x, n):
    b, t, heads, size = x.shape
    return x.repeat((1, 1, 1, n)).reshape(b, t, heads * n, size)


class Block:
    def __init__(self):
        self.wq, self.wo = nn.Linear(DIM, DIM, bias=False), nn.Linear(DIM, DIM, bias=False)
        self.wk, self.wv = (nn.Linear(DIM, KV * SIZE, bias=False) for _ in range(2))
        self.w1, self.w3 = (nn.Linear(DIM, 24, bias=False) for _ in range(2))
        self.w2 = nn.Linear(24, DIM, bias=False)
        self.attention_norm, self.ffn_norm = nn.RMSNorm(DIM), nn.RMSNorm(DIM, 1e-5)

    def __call__(self, x, freqs):
        b, t, _ = x.shape
        h = self.attention_norm(x)
        q = apply_rotary_emb(self.wq(h).reshape(b, t, HEADS, SIZE), freqs[:, :t])
        k = apply_rotary_emb(self.wk(h).reshape(b, t, KV, SIZE), freqs[:, :t])
        v = self.wv(h).reshape(b, t, KV, SIZE)
        k, v = repeat_kv(k, HEADS // KV), repeat_kv(v, HEADS // KV)
        mask = Tensor.full((1, 1, t, t), float("-inf"), dtype=x.dtype).triu(1)
        out = q.transpose(1, 2).scaled_dot_product_attention(k.transpose(1, 2), v.transpose(1, 2), mask)
        x = x + self.wo(out.transpose(1, 2).reshape(b, t, -1))
        h = self.ffn_norm(x)
        return x + self.w2(self.w1(h).silu() * self.w3(h))


Tensor.manual_seed(9)
embed, block, head = nn.Embedding(12, DIM), Block(), nn.Linear(DIM, 12, bias=False)
freqs = precompute_freqs_cis(SIZE, 8).realize()
tokens = Tensor([[1, 4, 7, 10, 2, 5, 8, 11]])
params = nn.state.get_parameters([embed, block, head])
opt = nn.optim.Adam(params, lr=0.02)
losses = []
with Tensor.train():
    for _ in range(15):
        opt.zero_grad()
        logits = head(block(embed(tokens[:, :-1]), freqs))
        loss = logits.cast(dtypes.float).flatten(0, 1).sparse_categorical_crossentropy(tokens[:, 1:].flatten())
        loss.backward()
        opt.step()
        losses.append(loss.item())
assert losses[-1] < 0.5 * losses[0], losses
