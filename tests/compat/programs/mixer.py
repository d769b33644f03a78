"""Mixing along tokens, then along channels, with nothing but linear layers."""
from tinygrad import Tensor, nn


class Mixer:
    def __init__(self, tokens, dim):
        self.n1, self.n2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.t1, self.t2 = nn.Linear(tokens, 8), nn.Linear(8, tokens)
        self.c1, self.c2 = nn.Linear(dim, 16), nn.Linear(16, dim)

    def __call__(self, x):
        x = x + self.t2(self.t1(self.n1(x).transpose(1, 2)).gelu()).transpose(1, 2)
        return x + self.c2(self.c1(self.n2(x)).gelu())


Tensor.manual_seed(25)
x = Tensor.randn(16, 2, 8, 8).realize()
y = (x[:, 0].mean((1, 2)) > x[:, 1].mean((1, 2))).cast("int32").realize()
patches = x.rearrange("b c (h p) (w q) -> b (h w) (c p q)", p=4, q=4)
net = [nn.Linear(32, 12), Mixer(4, 12), lambda x: x.mean(1), nn.Linear(12, 2)]
opt = nn.optim.Adam(nn.state.get_parameters(net), lr=0.02)
losses = []
with Tensor.train():
    for _ in range(15):
        opt.zero_grad()
        loss = patches.sequential(net).cross_entropy(y).backward()
        opt.step()
        losses.append(loss.item())
assert losses[-1] < 0.6 * losses[0], losses
