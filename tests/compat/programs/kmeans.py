"""Clusters by nearest centres, and principal axes by singular values."""
import numpy as np
from tinygrad import Tensor

Tensor.manual_seed(42)
centres = Tensor([[0.0, 0.0], [4.0, 4.0], [0.0, 5.0]])
points = (centres.repeat((20, 1)) + Tensor.randn(60, 2) * 0.3).realize()
found = points[:3].contiguous().realize()
for _ in range(5):
    distance = (points.unsqueeze(1) - found).square().sum(-1)
    member = distance.argmin(1).one_hot(3).float()
    found = (member.transpose() @ points / member.sum(0).unsqueeze(1).maximum(1)).realize()
order = found.sum(1).argsort()
assert found[order][0].abs().max().item() < 0.4 and (found[order][2] - 4).abs().max().item() < 0.4
centred = points - points.mean(0)
u, s, v = centred.svd(full_matrices=False)
np.testing.assert_allclose(s.numpy(), np.linalg.svd(centred.numpy())[1], rtol=1e-3)
assert ((u * s) @ v - centred).abs().max().item() < 1e-3
q, r = centred[:4].qr()
assert q.shape == (4, 4) and r.shape == (4, 2) and (q @ r - centred[:4]).abs().max().item() < 1e-4
