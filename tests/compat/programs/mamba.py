"""A selective state space: a scan over time as a loop over states that forget."""
from tinygrad import Tensor, nn


class SSM:
    def __init__(self, dim=6, state=4):
        self.dim, self.state = dim, state
        self.in_proj, self.conv = nn.Linear(dim, 2 * dim, bias=False), nn.Conv1d(dim, dim, 3, groups=dim, padding=2)
        self.x_proj, self.dt_proj = nn.Linear(dim, 1 + 2 * state, bias=False), nn.Linear(1, dim)
        self.A_log = Tensor.arange(1, state + 1).float().reshape(1, state).repeat(dim, 1).log()
        self.D, self.out_proj = Tensor.ones(dim), nn.Linear(dim, dim, bias=False)

    def __call__(self, x):
        b, t, _ = x.shape
        h, z = self.in_proj(x).chunk(2, dim=-1)
        h = self.conv(h.transpose(1, 2))[..., :t].transpose(1, 2).silu()
        dt, B, C = self.x_proj(h).split([1, self.state, self.state], dim=-1)
        dt = self.dt_proj(dt).softplus()
        dA = (dt.unsqueeze(-1) * -self.A_log.exp()).exp()
        dBx = dt.unsqueeze(-1) * B.unsqueeze(2) * h.unsqueeze(-1)
        state, out = Tensor.zeros(b, self.dim, self.state), []
        for i in range(t):
            state = dA[:, i] * state + dBx[:, i]
            out.append((state * C[:, i].unsqueeze(1)).sum(-1))
        y = Tensor.stack(*out, dim=1) + h * self.D
        return self.out_proj(y * z.silu())


Tensor.manual_seed(30)
embed, norm, block, head = nn.Embedding(8, 6), nn.RMSNorm(6), SSM(), nn.Linear(6, 8)
tokens = Tensor([[1, 2, 3, 1, 2]])
opt = nn.optim.Adam(nn.state.get_parameters([embed, norm, block, head]), lr=0.03)
losses = []
with Tensor.train():
    for _ in range(6):
        opt.zero_grad()
        x = embed(tokens[:, :-1])
        loss = head(x + block(norm(x))).sparse_categorical_crossentropy(tokens[:, 1:])
        loss.backward()
        opt.step()
        losses.append(loss.item())
assert losses[-1] < 0.9 * losses[0], losses
