"""Anchors, focal loss and smooth L1 on pyramids of features."""
from tinygrad import Tensor, nn

Tensor.manual_seed(18)
stem = nn.Conv2d(3, 8, 3, stride=2, padding=1)
down = nn.Conv2d(8, 8, 3, stride=2, padding=1)
lateral = [nn.Conv2d(8, 8, 1), nn.Conv2d(8, 8, 1)]
cls, box = nn.Conv2d(8, 2, 3, padding=1), nn.Conv2d(8, 8, 3, padding=1)
cls.bias.assign(Tensor.full((2,), -2.0))


def forward(x):
    c3 = stem(x).relu()
    c4 = down(c3).relu()
    p4 = lateral[1](c4)
    p3 = lateral[0](c3) + p4.interpolate(c3.shape[-2:], mode="nearest")
    flat = [(h(p).permute(0, 2, 3, 1).reshape(x.shape[0], -1, n)) for h, n in ((cls, 1), (box, 4)) for p in (p3, p4)]
    return flat[0].cat(flat[1], dim=1).squeeze(-1), flat[2].cat(flat[3], dim=1)


def sigmoid_focal_loss(logits, targets, alpha=0.25, gamma=2):
    p, ce = logits.sigmoid(), logits.binary_crossentropy_logits(targets, reduction="none")
    p_t = p * targets + (1 - p) * (1 - targets)
    return (ce * (1 - p_t) ** gamma * (alpha * targets + (1 - alpha) * (1 - targets))).sum()


x = Tensor.randn(2, 3, 16, 16).realize()
logits, boxes = forward(x)
assert logits.shape == (2, 160) and boxes.shape == (2, 160, 4)
targets = (Tensor.rand(2, 160) < 0.05).float().realize()
opt = nn.optim.SGD(nn.state.get_parameters([stem, down, lateral, cls, box]), lr=0.02, momentum=0.9)
losses = []
with Tensor.train():
    for _ in range(4):
        opt.zero_grad()
        logits, boxes = forward(x)
        gap = (boxes - 0.5).abs()
        smooth = (gap < 1).where(0.5 * gap * gap, gap - 0.5)
        loss = sigmoid_focal_loss(logits, targets) / targets.sum() + (smooth * targets.unsqueeze(-1)).mean()
        loss.backward()
        opt.step()
        losses.append(loss.item())
assert losses[-1] < losses[0], losses
