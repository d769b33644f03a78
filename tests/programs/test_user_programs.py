"""Twenty ordinary programs, written as a user of PyTorch or tinygrad would write them, on every device."""
from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np

from tinsmith import Tensor, TinyJit, nn
from tinsmith.nn.optim import SGD, Adam
from tinsmith.nn.state import get_parameters, get_state_dict, load_state_dict, safe_load, safe_save

RNG = np.random.default_rng(7)
POINTS = RNG.standard_normal((24, 3)).astype(np.float32)
CLASSES = (POINTS @ np.array([1.0, -2.0, 0.5], np.float32) > 0).astype(np.int64)


class Net:
    """Two layers and one that is inactive in evaluation."""

    def __init__(self, dropout: float = 0.0) -> None:
        self.first, self.norm, self.last = nn.Linear(3, 8), nn.BatchNorm(8), nn.Linear(8, 2)
        self.dropout = dropout

    def __call__(self, x: Tensor) -> Tensor:
        return self.last(self.norm(self.first(x).relu()).dropout(self.dropout))


def train(net: Callable[[Tensor], Tensor], steps: int = 6, lr: float = 0.1) -> list[float]:
    opt, losses = SGD(get_parameters(net), lr=lr), []
    x, y = Tensor(POINTS), Tensor(CLASSES)
    with Tensor.train():
        for _ in range(steps):
            opt.zero_grad()
            loss = net(x).cross_entropy(y)
            loss.backward()
            opt.step()
            losses.append(loss.item())
    return losses


def test_random_batches() -> None:
    X, Y = Tensor(POINTS), Tensor(POINTS @ np.array([[1.0], [2.0], [3.0]], np.float32))
    w = Tensor.zeros(3, 1, requires_grad=True)
    opt, first = SGD([w], lr=0.1), None
    for _ in range(12):
        samples = Tensor.randint(8, high=X.shape[0])
        x, y = X[samples], Y[samples]
        opt.zero_grad()
        loss = ((x @ w - y) ** 2).mean()
        loss.backward()
        with Tensor.train():
            opt.step()
        first = loss.item() if first is None else first
        np.testing.assert_array_equal(x.numpy(), POINTS[samples.numpy()])
    assert loss.item() < first / 10
    np.testing.assert_allclose((X @ w).numpy(), POINTS @ w.numpy(), atol=1e-5)


def test_embeddings() -> None:
    table, head = nn.Embedding(10, 4), nn.Linear(4, 2)
    before = table.weight.numpy()
    tokens, label = Tensor([[1, 2, 3], [4, 5, 1], [2, 2, 2]]), Tensor([0, 1, 0])
    opt = Adam([table.weight, *get_parameters(head)], lr=0.1)
    losses = []
    for _ in range(8):
        with Tensor.train():
            opt.zero_grad()
            loss = head(table(tokens).mean(1)).cross_entropy(label).backward()
            opt.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0] / 2
    changed = (table.weight.numpy() != before).any(1)
    assert changed.tolist() == [n in (1, 2, 3, 4, 5) for n in range(10)]


def test_masks() -> None:
    x = Tensor(POINTS)
    positive = x > 0
    np.testing.assert_allclose(x[positive].numpy(), POINTS[POINTS > 0])
    assert positive.sum().item() == (POINTS > 0).sum()
    x[x < 0] = 0
    np.testing.assert_array_equal(x.numpy(), POINTS.clip(0))
    assert bool((x >= 0).all()) and not bool((x > 100).any())
    np.testing.assert_array_equal(x.masked_fill(x == 0, -1).numpy(), np.where(POINTS <= 0, -1, POINTS))


def test_sequences_of_several_lengths() -> None:
    lengths, longest = [2, 4, 1], 4
    rows = [RNG.standard_normal((n, 3)).astype(np.float32) for n in lengths]
    padded = Tensor.stack([Tensor(r).pad(((0, longest - len(r)), (0, 0))) for r in rows])
    mask = (Tensor.arange(longest).unsqueeze(0) < Tensor(lengths).unsqueeze(1)).unsqueeze(-1)
    means = (padded * mask).sum(1) / mask.sum(1)
    np.testing.assert_allclose(means.numpy(), np.stack([r.mean(0) for r in rows]), rtol=1e-5, atol=1e-6)
    peaks = mask.where(padded, -np.inf).max(1)
    np.testing.assert_array_equal(peaks.numpy(), np.stack([r.max(0) for r in rows]))


def test_last_batch_is_padded() -> None:
    net, found = Net(), []
    whole = net(Tensor(POINTS)).numpy()
    for start in range(0, 24, 10):
        part = POINTS[start : start + 10]
        rows = np.concatenate([part, np.zeros((10 - len(part), 3), np.float32)])
        found.append(net(Tensor(rows))[: len(part)].numpy())
    np.testing.assert_allclose(np.concatenate(found), whole, rtol=1e-4, atol=1e-5)


def test_gradient_clipping() -> None:
    w = Tensor(POINTS[:4], requires_grad=True)
    start, opt = w.numpy(), SGD([w], lr=1.0)
    (w * w * 10).sum().backward()
    norm = (w.grad * w.grad).sum().sqrt()
    scale = (1.0 / (norm + 1e-6)).minimum(1.0)
    w.grad = w.grad * scale
    assert abs((w.grad ** 2).sum().sqrt().item() - 1) < 1e-4
    with Tensor.train():
        opt.step()
    gradient = 20 * start
    np.testing.assert_allclose(w.numpy(), start - gradient / np.linalg.norm(gradient), rtol=1e-4, atol=1e-5)


def test_checkpoint(tmp_path: Path) -> None:
    net = Net()
    train(net, 2)
    safe_save(get_state_dict(net), tmp_path / "net.safetensors")
    wanted, later = net(Tensor(POINTS)).numpy(), train(net, 2)
    other = Net()
    load_state_dict(other, safe_load(tmp_path / "net.safetensors"))
    np.testing.assert_array_equal(other(Tensor(POINTS)).numpy(), wanted)
    np.testing.assert_allclose(train(other, 2), later, rtol=1e-5)


def test_evaluation_between_steps() -> None:
    def losses(evaluate: bool) -> list[float]:
        Tensor.manual_seed(3)
        net, found = Net(), []
        for _ in range(3):
            found += train(net, 1)
            if evaluate:
                predictions = net(Tensor(POINTS[:5])).argmax(1)
                assert predictions.shape == (5,) and 0 <= (predictions == Tensor(CLASSES[:5])).mean().item() <= 1
        return found

    np.testing.assert_allclose(losses(True), losses(False), rtol=1e-6)


def test_dropout_and_batch_norm_by_mode() -> None:
    net = Net(dropout=0.5)
    x = Tensor(POINTS)
    assert np.array_equal(net(x).numpy(), net(x).numpy())
    stored = net.norm.running_mean.numpy()
    net(x).realize()
    assert np.array_equal(net.norm.running_mean.numpy(), stored)
    with Tensor.train():
        assert not np.array_equal(net(x).numpy(), net(x).numpy())
    assert not np.array_equal(net.norm.running_mean.numpy(), stored)


def test_gradients_of_parts_add_up() -> None:
    layer = nn.Linear(3, 2)
    layer(Tensor(POINTS)).cross_entropy(Tensor(CLASSES)).backward()
    whole = [p.grad.numpy() for p in get_parameters(layer)]
    for p in get_parameters(layer):
        p.grad = None
    for n in range(4):
        x, y = POINTS[6 * n : 6 * n + 6], CLASSES[6 * n : 6 * n + 6]
        (layer(Tensor(x)).cross_entropy(Tensor(y)) / 4).backward()
    for p, want in zip(get_parameters(layer), whole):
        np.testing.assert_allclose(p.grad.numpy(), want, rtol=1e-4, atol=1e-6)


def test_frozen_layers() -> None:
    net = Net()
    net.first.weight.requires_grad = net.first.bias.requires_grad = False
    before = {k: v.numpy() for k, v in get_state_dict(net).items()}
    opt = SGD(get_parameters(net.last), lr=0.1)
    with Tensor.train():
        net(Tensor(POINTS)).cross_entropy(Tensor(CLASSES)).backward()
        opt.step()
    after = {k: v.numpy() for k, v in get_state_dict(net).items()}
    assert net.first.weight.grad is None
    assert [k for k in before if k.startswith("first") and not np.array_equal(before[k], after[k])] == []
    assert not np.array_equal(before["last.weight"], after["last.weight"])


def test_learning_rate_schedule() -> None:
    w = Tensor([1.0, 2.0], requires_grad=True)
    opt, want = SGD([w], lr=0.5), np.array([1.0, 2.0])
    for rate in (0.5, 0.25, 0.125):
        opt.lr.assign(Tensor([rate]))
        opt.zero_grad()
        (w * w).sum().backward()
        with Tensor.train():
            opt.step()
        want = want - rate * 2 * want
        np.testing.assert_allclose(w.numpy(), want, rtol=1e-6)


def test_best_weights_are_kept() -> None:
    net, history = Net(), []
    best, least = None, np.inf
    for _ in range(4):
        history += train(net, 1, lr=0.3)
        if history[-1] < least:
            least, best = history[-1], {k: v.numpy() for k, v in get_state_dict(net).items()}
    assert history[-1] < history[0]
    assert best is not None
    net.last.weight *= 0
    load_state_dict(net, best)
    np.testing.assert_array_equal(net.last.weight.numpy(), best["last.weight"])


def test_average_of_weights() -> None:
    w, average = Tensor([1.0, -1.0]), Tensor([0.0, 0.0])
    want, mean = np.array([1.0, -1.0]), np.zeros(2)
    for n in range(5):
        w += n
        want = want + n
        average = average * 0.9 + w * 0.1
        mean = mean * 0.9 + want * 0.1
    np.testing.assert_allclose(average.numpy(), mean, rtol=1e-5)
    np.testing.assert_allclose(w.numpy(), want)


def test_confusion_matrix() -> None:
    predicted, actual = RNG.integers(0, 3, 20), RNG.integers(0, 3, 20)
    places = Tensor(actual) * 3 + Tensor(predicted)
    counts = Tensor.zeros(9, dtype="int32").scatter_add(0, places, Tensor.ones(20, dtype="int32")).reshape(3, 3)
    want = np.zeros((3, 3), int)
    np.add.at(want, (actual, predicted), 1)
    assert counts.tolist() == want.tolist()
    both = (Tensor(predicted).one_hot(3).T @ Tensor(actual).one_hot(3)).T
    assert both.tolist() == want.tolist()
    accuracy = (Tensor(predicted) == Tensor(actual)).float().mean().item()
    assert abs(accuracy - (predicted == actual).mean()) < 1e-6


def test_causal_attention() -> None:
    q, k, v = (RNG.standard_normal((2, 5, 4)).astype(np.float32) for _ in range(3))
    scores = Tensor(q) @ Tensor(k).transpose(-1, -2) / 4 ** 0.5
    allowed = Tensor.ones(5, 5).tril() == 1
    out = (allowed.where(scores, -np.inf).softmax(-1) @ Tensor(v)).numpy()
    raw = np.where(np.tril(np.ones((5, 5))) == 1, q @ k.swapaxes(1, 2) / 2, -np.inf)
    weights = np.exp(raw - raw.max(-1, keepdims=True))
    np.testing.assert_allclose(out, weights / weights.sum(-1, keepdims=True) @ v, rtol=1e-4, atol=1e-5)
    fused = Tensor(q).scaled_dot_product_attention(Tensor(k), Tensor(v), is_causal=True)
    np.testing.assert_allclose(fused.numpy(), out, rtol=1e-4, atol=1e-5)


def test_images() -> None:
    x = RNG.standard_normal((6, 1, 6, 6)).astype(np.float32)
    x[:3, :, :3] += 2
    images, labels = Tensor(x), Tensor([0, 0, 0, 1, 1, 1])
    conv, head = nn.Conv2d(1, 3, 3), nn.Linear(12, 2)
    opt, losses = Adam([*get_parameters(conv), *get_parameters(head)], lr=0.05), []
    for _ in range(8):
        with Tensor.train():
            opt.zero_grad()
            loss = head(conv(images).relu().max_pool2d().flatten(1)).cross_entropy(labels)
            loss.backward()
            opt.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0] / 2
    flipped = Tensor([True, False, True, False, True, False]).reshape(6, 1, 1, 1).where(images.flip(3), images)
    np.testing.assert_array_equal(flipped.numpy()[::2], x[::2, :, :, ::-1])


def test_recurrent_cell_over_time() -> None:
    cell, head = nn.LSTMCell(2, 4), nn.Linear(4, 1)
    x = RNG.standard_normal((6, 3, 2)).astype(np.float32)
    target = Tensor((x.sum((1, 2)) > 0).astype(np.float32))
    opt, losses = Adam([*get_parameters(cell), *get_parameters(head)], lr=0.1), []
    for _ in range(6):
        state = None
        for step in range(3):
            state = cell(Tensor(x)[:, step], state)
        with Tensor.train():
            opt.zero_grad()
            loss = head(state[0]).squeeze(1).binary_crossentropy_logits(target).backward()
            opt.step()
        losses.append(loss)
    values = [v.item() for v in losses]  # read after all steps
    assert values[-1] < values[0]
    assert len(set(values)) == len(values)


def test_epochs_of_shuffled_rows_captured() -> None:
    X, Y = Tensor(POINTS), Tensor(CLASSES)
    layer = nn.Linear(3, 2)
    opt = SGD(get_parameters(layer), lr=0.2, momentum=0.9)

    @TinyJit
    def step(x: Tensor, y: Tensor) -> Tensor:
        with Tensor.train():
            opt.zero_grad()
            loss = layer(x).sparse_categorical_crossentropy(y).backward()
            opt.step()
            return loss.realize()

    epochs = []
    for _ in range(3):
        order = Tensor.randperm(24)
        assert sorted(order.tolist()) == list(range(24))
        picked = [order[n : n + 8] for n in range(0, 24, 8)]
        epochs.append(sum(step(X[rows].realize(), Y[rows].realize()).item() for rows in picked))
    assert epochs[-1] < epochs[0]


def test_clusters() -> None:
    points = np.concatenate([POINTS[:12] * 0.1, POINTS[12:] * 0.1 + 3])
    x, centers = Tensor(points), Tensor(points[[0, 23]])
    for _ in range(3):
        distance = ((x.unsqueeze(1) - centers.unsqueeze(0)) ** 2).sum(-1)
        nearest = distance.argmin(1)
        members = nearest.one_hot(2).float()
        centers = (members.T @ x) / members.sum(0).unsqueeze(1)
    assert nearest.tolist() == [0] * 12 + [1] * 12
    np.testing.assert_allclose(centers.numpy(), [points[:12].mean(0), points[12:].mean(0)], rtol=1e-4, atol=1e-5)
