"""Denoising diffusion: a schedule of noise, a network that knows the time, and sampling backwards."""
from tinygrad import Tensor, TinyJit, nn

STEPS = 10
betas = Tensor.linspace(0.01, 0.3, STEPS)
alphas_cumprod = (1 - betas).cumprod(0).realize()


class Denoiser:
    def __init__(self):
        self.time, self.l1 = nn.Embedding(STEPS, 16), nn.Linear(2, 16)
        self.l2, self.l3 = nn.Linear(16, 16), nn.Linear(16, 2)

    def __call__(self, x, t):
        h = (self.l1(x) + self.time(t)).silu()
        return self.l3(h + self.l2(h).silu())


Tensor.manual_seed(15)
data = (Tensor.randn(64, 2) * 0.05 + Tensor([1.0, -1.0])).realize()
net = Denoiser()
opt = nn.optim.Adam(nn.state.get_parameters(net), lr=0.01)


@TinyJit
@Tensor.train()
def step():
    opt.zero_grad()
    t, noise = Tensor.randint(64, high=STEPS), Tensor.randn(64, 2)
    a = alphas_cumprod[t].unsqueeze(1)
    loss = (net(a.sqrt() * data + (1 - a).sqrt() * noise, t) - noise).square().mean()
    return loss.backward().realize(*opt.schedule_step())


losses = [step().item() for _ in range(40)]
assert sum(losses[-10:]) < 0.8 * sum(losses[:10])
x = Tensor.randn(64, 2)
for i in reversed(range(STEPS)):
    a, b = alphas_cumprod[i], betas[i]
    x = (x - b / (1 - a).sqrt() * net(x, Tensor.full((64,), i))) / (1 - b).sqrt()
    x = (x + b.sqrt() * Tensor.randn(64, 2) if i else x).realize()
assert x.isnan().any().item() is False and x[:, 0].mean().item() > x[:, 1].mean().item()
