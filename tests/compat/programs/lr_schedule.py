"""A rate that warms up and falls as a cosine, in a captured step; a scheduler of one's own."""
import math

from tinygrad import Tensor, TinyJit, nn


class CosineWarmup:
    def __init__(self, opt, top, warmup, total):
        self.opt, self.top, self.warmup, self.total, self.epoch = opt, top, warmup, total, Tensor([0.0]).realize()

    def step(self):
        self.epoch.assign(self.epoch + 1)
        rise = self.epoch / self.warmup
        fall = 0.5 * (1 + ((self.epoch - self.warmup) / (self.total - self.warmup) * math.pi).cos())
        self.opt.lr.assign((self.epoch < self.warmup).where(rise, fall) * self.top)
        return [self.epoch, self.opt.lr]


Tensor.manual_seed(43)
w = Tensor([5.0, -3.0])
opt = nn.optim.SGD([w], lr=0.0)
scheduler = CosineWarmup(opt, 0.2, 5, 20)


@TinyJit
@Tensor.train()
def step():
    opt.zero_grad()
    loss = w.square().sum().backward()
    return loss.realize(*opt.schedule_step(), *scheduler.step())


rates, losses = [], []
for _ in range(20):
    losses.append(step().item())
    rates.append(opt.lr.item())
assert abs(max(rates) - 0.2) < 0.01 and rates[0] < 0.1 and rates[-1] < 0.01, rates
assert losses[-1] < 0.1 * losses[0]
