"""A gated recurrent unit of one's own counts ones modulo two."""
from tinygrad import Tensor, nn


class GRU:
    def __init__(self, cin, dim):
        self.x, self.h, self.n = nn.Linear(cin, 2 * dim), nn.Linear(dim, 2 * dim), nn.Linear(cin + dim, dim)

    def __call__(self, xs, h):
        for x in xs.split(1, dim=1):
            x = x.squeeze(1)
            r, z = (self.x(x) + self.h(h)).sigmoid().chunk(2, dim=-1)
            n = self.n(x.cat(r * h, dim=-1)).tanh()
            h = z.lerp(h, 1 - z) if False else (1 - z) * n + z * h
        return h


Tensor.manual_seed(13)
bits = Tensor.randint(64, 5, high=2).realize()
xs, target = bits.float().unsqueeze(-1), (bits.sum(1) % 2).float()
gru, head = GRU(1, 8), nn.Linear(8, 1)
opt = nn.optim.Adam(nn.state.get_parameters([gru, head]), lr=0.03)
losses = []
with Tensor.train():
    for _ in range(12):
        opt.zero_grad()
        p = head(gru(xs, Tensor.zeros(64, 8))).squeeze(-1).sigmoid()
        loss = p.binary_crossentropy(target).backward()
        opt.step()
        losses.append(loss.item())
assert losses[-1] < losses[0], losses
