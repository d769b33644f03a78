"""Spectra by a matrix product, a bank of filters, and a classifier of tones on top."""
import math

import numpy as np
from tinygrad import Tensor, nn

N, HOP = 16, 8
k = Tensor.arange(N // 2 + 1).reshape(1, -1) * Tensor.arange(N).reshape(-1, 1) * (2 * math.pi / N)
window = 0.5 - 0.5 * (Tensor.arange(N) * (2 * math.pi / N)).cos()
bank = (1 - (Tensor.arange(N // 2 + 1).reshape(-1, 1) - Tensor.arange(5) * 2).abs() * 0.5).clip(0).realize()


def log_mel(audio):
    frames = audio.pad((N // 2, N // 2), mode="reflect").unfold(-1, N, HOP) * window
    power = (frames @ k.cos()).square() + (frames @ k.sin()).square()
    mel = (power @ bank).clip(1e-10).log10()
    return (mel.maximum(mel.max() - 8.0) + 4.0) / 4.0


Tensor.manual_seed(22)
t = np.arange(64) / 64
labels = np.arange(12) % 2
audio = Tensor(np.stack([np.sin(2 * np.pi * (4 + 12 * y) * t + n) for n, y in enumerate(labels)]).astype(np.float32))
features = log_mel(audio).realize()
assert features.shape == (12, 9, 5)
wanted = np.abs(np.fft.rfft(audio.numpy()[0, 8:24] * window.numpy())) ** 2
got = audio[0, 8:24] * window
np.testing.assert_allclose(((got @ k.cos()).square() + (got @ k.sin()).square()).numpy(), wanted, atol=1e-3)
head = nn.Linear(45, 2)
opt = nn.optim.SGD(nn.state.get_parameters(head), lr=0.5)
with Tensor.train():
    for _ in range(30):
        opt.zero_grad()
        loss = head(features.flatten(1)).cross_entropy(Tensor(labels)).backward()
        opt.step()
assert (head(features.flatten(1)).argmax(1).numpy() == labels).all()
