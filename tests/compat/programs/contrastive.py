"""Two towers and a temperature: each image finds its text."""
import math

from tinygrad import Tensor, nn

Tensor.manual_seed(32)
images, texts = nn.Linear(10, 6), nn.Linear(8, 6)
scale = Tensor([math.log(1 / 0.07)])
x = Tensor.randn(12, 10).realize()
y = (x @ Tensor.randn(10, 8)).realize()
opt = nn.optim.AdamW([*nn.state.get_parameters([images, texts]), scale], lr=0.03)
losses = []
with Tensor.train():
    for _ in range(20):
        opt.zero_grad()
        a, b = images(x).normalize(dim=-1), texts(y).normalize(dim=-1)
        logits = scale.exp().clip(max_=100) * a @ b.transpose()
        labels = Tensor.arange(12)
        loss = (logits.cross_entropy(labels) + logits.T.cross_entropy(labels)) / 2
        loss.backward()
        opt.step()
        losses.append(loss.item())
a, b = images(x).normalize(dim=-1), texts(y).normalize(dim=-1)
assert losses[-1] < 0.7 * losses[0] and ((a @ b.T).argmax(1) == Tensor.arange(12)).mean().item() > 0.6
