"""Masked words: positions chosen at random, segments, labels that are ignored."""
from tinygrad import Tensor, nn


class Bert:
    def __init__(self, vocab=20, dim=16):
        self.word, self.position, self.segment = nn.Embedding(vocab, dim), nn.Embedding(8, dim), nn.Embedding(2, dim)
        self.norm, self.qkv, self.out = nn.LayerNorm(dim, eps=1e-12), nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.mid, self.down = nn.Linear(dim, 32), nn.Linear(32, dim)
        self.bias = Tensor.zeros(vocab)

    def __call__(self, ids, mask, types):
        t = ids.shape[1]
        x = self.norm(self.word(ids) + self.position(Tensor.arange(t).reshape(1, t)) + self.segment(types))
        q, k, v = self.qkv(x).chunk(3, dim=-1)
        bias = (1.0 - mask.reshape(-1, 1, t)) * -10000.0
        x = x + self.out(q.scaled_dot_product_attention(k, v, attn_mask=bias))
        x = x + self.down(self.mid(x).gelu())
        return x @ self.word.weight.transpose() + self.bias


Tensor.manual_seed(10)
ids = Tensor.randint(8, 8, low=2, high=20).realize()
chosen = (Tensor.rand(8, 8) < 0.25).realize()
inputs, labels = chosen.where(1, ids), chosen.where(ids, -1)
model = Bert()
opt = nn.optim.LAMB(nn.state.get_parameters(model), lr=0.02, weight_decay=0.01)
losses = []
with Tensor.train():
    for _ in range(12):
        opt.zero_grad()
        logits = model(inputs, Tensor.ones(8, 8), Tensor.zeros(8, 8, dtype="int32"))
        loss = logits.sparse_categorical_crossentropy(labels, ignore_index=-1)
        loss.backward()
        opt.step()
        losses.append(loss.item())
assert losses[-1] < losses[0], losses
