"""Two of four experts per token, chosen by a gate; a term that spreads the load."""
from tinygrad import Tensor, nn


class MoE:
    def __init__(self, dim=8, experts=4):
        self.gate = nn.Linear(dim, experts, bias=False)
        self.up, self.down = Tensor.glorot_uniform(experts, dim, 16), Tensor.glorot_uniform(experts, 16, dim)

    def __call__(self, x):
        probs = self.gate(x).softmax(-1)
        weights, chosen = probs.topk(2)
        weights = weights / weights.sum(-1, keepdim=True)
        h = x.reshape(-1, 1, 1, x.shape[-1]) @ self.up[chosen]
        y = (h.silu() @ self.down[chosen]).squeeze(2)
        load = chosen.one_hot(4).float().sum(1).mean(0)
        return (y * weights.unsqueeze(-1)).sum(1), (load * probs.mean(0)).sum()


Tensor.manual_seed(31)
moe, x = MoE(), Tensor.randn(24, 8).realize()
y = x.flip(1).tanh().realize()
opt = nn.optim.Adam(nn.state.get_parameters(moe), lr=0.02)
losses = []
with Tensor.train():
    for _ in range(15):
        opt.zero_grad()
        out, balance = moe(x)
        loss = (out - y).square().mean() + 0.01 * balance
        loss.backward()
        opt.step()
        losses.append(loss.item())
assert losses[-1] < 0.7 * losses[0], losses
