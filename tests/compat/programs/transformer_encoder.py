"""An encoder with attention by hand learns to reverse digits."""
from tinygrad import Tensor, nn


class Block:
    def __init__(self, dim, heads):
        self.heads, self.size = heads, dim // heads
        self.query, self.key, self.value, self.out = (nn.Linear(dim, dim) for _ in range(4))
        self.ln1, self.ln2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.ff1, self.ff2 = nn.Linear(dim, 2 * dim), nn.Linear(2 * dim, dim)

    def attn(self, x):
        q, k, v = (p(x).reshape(shape=(x.shape[0], -1, self.heads, self.size)).transpose(1, 2)
                   for p in (self.query, self.key, self.value))
        scores = q @ k.transpose(-2, -1) / self.size**0.5
        return self.out((scores.softmax() @ v).transpose(1, 2).reshape(shape=(x.shape[0], -1, self.heads * self.size)))

    def __call__(self, x):
        x = x + self.attn(self.ln1(x)).dropout(0.0)
        return x + self.ff2(self.ff1(self.ln2(x)).gelu())


class Transformer:
    def __init__(self):
        self.embed, self.pos = nn.Embedding(10, 16), Tensor.glorot_uniform(1, 6, 16)
        self.blocks, self.final = [Block(16, 4)], nn.Linear(16, 10)

    def __call__(self, x):
        return self.final((self.embed(x) + self.pos).sequential(self.blocks)).log_softmax()


Tensor.manual_seed(7)
x = Tensor.randint(64, 6, high=10).realize()
y = x.flip(1)
model = Transformer()
opt = nn.optim.Adam(nn.state.get_parameters(model), lr=0.005)
losses = []
with Tensor.train():
    for _ in range(6):
        opt.zero_grad()
        loss = model(x).reshape(-1, 10).nll_loss(y.flatten())
        loss.backward()
        opt.step()
        losses.append(loss.item())
assert losses[-1] < losses[0], losses
