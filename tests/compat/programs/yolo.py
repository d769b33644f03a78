"""Detection on a grid: boxes, objectness, and suppression of what overlaps."""
import numpy as np
from tinygrad import Tensor, nn


class Detector:
    def __init__(self):
        self.backbone = [nn.Conv2d(1, 8, 3, stride=2, padding=1), nn.BatchNorm2d(8), lambda x: x.leaky_relu(0.1),
                         nn.Conv2d(8, 8, 3, stride=2, padding=1), nn.BatchNorm2d(8), lambda x: x.leaky_relu(0.1)]
        self.head = nn.Conv2d(8, 5, 1)

    def __call__(self, x):
        out = self.head(x.sequential(self.backbone)).permute(0, 2, 3, 1)
        b, h, w, _ = out.shape
        gx, gy = Tensor.arange(w).reshape(1, 1, w).expand(b, h, w), Tensor.arange(h).reshape(1, h, 1).expand(b, h, w)
        xy = out[..., :2].sigmoid() + Tensor.stack(gx, gy, dim=-1)
        return xy.cat(out[..., 2:4].exp(), dim=-1), out[..., 4]


def iou(boxes):
    low, high = boxes[:, :2] - boxes[:, 2:] / 2, boxes[:, :2] + boxes[:, 2:] / 2
    inter = (high.unsqueeze(1).minimum(high) - low.unsqueeze(1).maximum(low)).clip(0).prod(-1)
    area = boxes[:, 2] * boxes[:, 3]
    return inter / (area.unsqueeze(1) + area - inter)


Tensor.manual_seed(17)
images = np.zeros((8, 1, 16, 16), np.float32)
cells = [(i % 4, (i * 3) % 4) for i in range(8)]
for n, (cx, cy) in enumerate(cells):
    images[n, 0, cy * 4:cy * 4 + 4, cx * 4:cx * 4 + 4] = 1
x = Tensor(images)
truth = Tensor([[cx + 0.5, cy + 0.5, 1.0, 1.0] for cx, cy in cells])
index = Tensor([cy * 4 + cx for cx, cy in cells])
model = Detector()
opt = nn.optim.Adam(nn.state.get_parameters(model), lr=0.03)
losses = []
with Tensor.train():
    for _ in range(15):
        opt.zero_grad()
        boxes, score = model(x)
        mine = boxes.reshape(8, 16, 4).gather(1, index.reshape(8, 1, 1).expand(8, 1, 4)).squeeze(1)
        loss = score.reshape(8, 16).sparse_categorical_crossentropy(index) + (mine - truth).square().mean()
        loss.backward()
        opt.step()
        losses.append(loss.item())
assert losses[-1] < 0.6 * losses[0], losses
boxes, score = model(x)
best, places = score[0].flatten().topk(4)
overlap = iou(boxes[0].reshape(16, 4)[places])
keep = ((overlap.tril(-1) > 0.5).sum(1) == 0).numpy()
assert keep[0] and overlap.shape == (4, 4)
