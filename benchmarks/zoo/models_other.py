"""Recurrent, recommending, graph, geometric and generative models, written in plain PyTorch."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from benchmarks.zoo.registry import Example, Size, classified, model, wide


class _Recurrent(nn.Module):
    """A language model with nn.LSTM or nn.GRU."""

    def __init__(self, kind: Any, words: int, width: int, layers: int, bidirectional: bool = False) -> None:
        super().__init__()
        self.embed = nn.Embedding(words, width)
        self.body = kind(width, width, layers, batch_first=True, bidirectional=bidirectional)
        self.out = nn.Linear(width * (2 if bidirectional else 1), words)

    def forward(self, tokens: Any) -> Any:
        return self.out(self.body(self.embed(tokens))[0])


def next_word(output: Any, tokens: Any) -> Any:
    """Return the cross entropy of the next word."""
    return F.cross_entropy(wide(output[:, :-1].flatten(0, 1)), tokens[:, 1:].flatten())


def _text(module: Any, words: int, batch: int, length: int) -> Example:
    tokens = torch.randint(words, (batch, length))
    return Example(module, (tokens,), (tokens,), next_word)


@model("lstm", "other")
def _lstm(size: Size) -> Example:
    words, width, batch, length = (20, 8, 2, 6) if size == "small" else (2000, 256, 16, 32)
    return _text(_Recurrent(nn.LSTM, words, width, 2), words, batch, length)


@model("gru_bidirectional", "other")
def _gru(size: Size) -> Example:
    words, width, batch, length = (20, 8, 2, 5) if size == "small" else (2000, 256, 16, 32)
    return _text(_Recurrent(nn.GRU, words, width, 1, True), words, batch, length)


class _Cells(nn.Module):
    """An encoder and a decoder of nn.LSTMCell with attention over the encoder's states."""

    def __init__(self, words: int, width: int) -> None:
        super().__init__()
        self.embed, self.read, self.write = (
            nn.Embedding(words, width),
            nn.LSTMCell(width, width),
            nn.LSTMCell(2 * width, width),
        )
        self.out = nn.Linear(2 * width, words)

    def forward(self, tokens: Any) -> Any:
        x = self.embed(tokens)
        h = c = x.new_zeros(x.shape[0], x.shape[2])
        states = []
        for t in range(x.shape[1]):
            h, c = self.read(x[:, t], (h, c))
            states.append(h)
        memory, outputs, context = torch.stack(states, 1), [], torch.zeros_like(h)
        for t in range(x.shape[1]):
            h, c = self.write(torch.cat([x[:, t], context], -1), (h, c))
            context = ((memory @ h[:, :, None]).softmax(1) * memory).sum(1)
            outputs.append(self.out(torch.cat([h, context], -1)))
        return torch.stack(outputs, 1)


@model("seq2seq_lstm", "other")
def _seq2seq(size: Size) -> Example:
    words, width, batch, length = (20, 8, 2, 4) if size == "small" else (1000, 256, 32, 12)
    return _text(_Cells(words, width), words, batch, length)


class _Scan(nn.Module):
    """A selective state space layer in the manner of Mamba, its recurrence as cumulative sums of logarithms."""

    def __init__(self, width: int, states: int) -> None:
        super().__init__()
        self.inner, self.states = 2 * width, states
        self.norm, self.start, self.end = nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.Linear(2 * width, width)
        self.conv = nn.Conv1d(2 * width, 2 * width, 4, padding=3, groups=2 * width)
        self.choose, self.step = nn.Linear(2 * width, 2 * states + 1), nn.Parameter(torch.zeros(2 * width))
        self.decay = nn.Parameter(torch.rand(2 * width, states))

    def forward(self, x: Any) -> Any:
        y, gate = self.start(self.norm(x)).chunk(2, -1)
        y = F.silu(self.conv(y.transpose(1, 2))[..., : x.shape[1]].transpose(1, 2))
        b, c, step = self.choose(y).split([self.states, self.states, 1], -1)
        step = F.softplus(step + self.step)
        logs = torch.cumsum(-step[..., None] * self.decay.exp(), 1).clamp(min=-20)
        terms = (step * y)[..., None] * b[:, :, None] * (-logs).exp()
        state = torch.cumsum(terms, 1) * logs.exp()
        return x + self.end((state * c[:, :, None]).sum(-1) * F.silu(gate))


class _ScanModel(nn.Module):
    def __init__(self, words: int, width: int, depth: int, states: int) -> None:
        super().__init__()
        self.embed, self.body = nn.Embedding(words, width), nn.Sequential(*(_Scan(width, states) for _ in range(depth)))
        self.out = nn.Linear(width, words)

    def forward(self, tokens: Any) -> Any:
        return self.out(self.body(self.embed(tokens)))


@model("state_space", "other")
def _state_space(size: Size) -> Example:
    words, width, depth, batch, length = (20, 8, 2, 2, 8) if size == "small" else (1000, 128, 4, 2, 64)
    return _text(_ScanModel(words, width, depth, 4 if size == "small" else 16), words, batch, length)


class _Dlrm(nn.Module):
    """A recommendation model: embedding bags, products of all pairs, two perceptrons (Naumov et al. 2019)."""

    def __init__(self, rows: tuple[int, ...], dense: int, width: int, bag: bool) -> None:
        super().__init__()
        self.bag = bag
        self.tables = nn.ModuleList(
            (nn.EmbeddingBag(n, width, mode="sum") if bag else nn.Embedding(n, width)) for n in rows
        )
        self.low = nn.Sequential(nn.Linear(dense, 2 * width), nn.ReLU(), nn.Linear(2 * width, width), nn.ReLU())
        pairs = (len(rows) + 1) * len(rows) // 2
        self.high = nn.Sequential(nn.Linear(pairs + width, 2 * width), nn.ReLU(), nn.Linear(2 * width, 1))
        self.register_buffer("pairs", torch.tril_indices(len(rows) + 1, len(rows) + 1, -1))

    def forward(self, dense: Any, sparse: Any) -> Any:
        found = [t(sparse[:, n]) if self.bag else t(sparse[:, n]).sum(1) for n, t in enumerate(self.tables)]
        low = self.low(dense)
        all_ = torch.stack([low, *found], 1)
        products = all_ @ all_.transpose(1, 2)
        return self.high(torch.cat([low, products[:, self.pairs[0], self.pairs[1]]], 1)).squeeze(-1)


def _dlrm(size: Size, bag: bool) -> Example:
    rows, width, batch = ((10, 20, 7), 8, 4) if size == "small" else ((10000,) * 16, 64, 1024)
    sparse = torch.stack([torch.randint(n, (batch, 4)) for n in rows], 1)
    return Example(
        _Dlrm(rows, 13, width, bag),
        (torch.randn(batch, 13), sparse),
        (torch.rand(batch).round(),),
        F.binary_cross_entropy_with_logits,
    )


@model("dlrm", "other")
def _dlrm_sum(size: Size) -> Example:
    return _dlrm(size, False)


@model("dlrm_bags", "other")
def _dlrm_bags(size: Size) -> Example:
    return _dlrm(size, True)


class _WideDeep(nn.Module):
    """Factorization machine, cross layers and a perceptron over one table of features (DeepFM, DCN)."""

    def __init__(self, features: int, fields: int, width: int) -> None:
        super().__init__()
        self.table, self.linear = nn.Embedding(features, width), nn.Embedding(features, 1)
        self.cross = nn.ModuleList(nn.Linear(fields * width, fields * width) for _ in range(2))
        self.deep = nn.Sequential(nn.Linear(fields * width, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 1))
        self.last = nn.Linear(fields * width, 1)

    def forward(self, ids: Any) -> Any:
        v = self.table(ids)
        machine = 0.5 * (v.sum(1) ** 2 - (v**2).sum(1)).sum(1)
        x = y = v.flatten(1)
        for layer in self.cross:
            y = x * layer(y) + y
        return machine + self.linear(ids).sum((1, 2)) + (self.deep(x) + self.last(y)).squeeze(1)


@model("deepfm", "other")
def _deepfm(size: Size) -> Example:
    features, fields, width, batch = (50, 4, 4, 8) if size == "small" else (100000, 26, 16, 2048)
    return Example(
        _WideDeep(features, fields, width),
        (torch.randint(features, (batch, fields)),),
        (torch.rand(batch).round(),),
        F.binary_cross_entropy_with_logits,
    )


class _Gcn(nn.Module):
    """A graph network: messages gathered along edges and added at their ends; mean and attention variants."""

    def __init__(self, features: int, width: int, classes: int, kind: str) -> None:
        super().__init__()
        self.kind = kind
        self.layers = nn.ModuleList([nn.Linear(features, width), nn.Linear(width, classes)])
        self.mine = nn.ModuleList([nn.Linear(features, width), nn.Linear(width, classes)])
        self.score = nn.ModuleList([nn.Linear(2 * width, 1), nn.Linear(2 * classes, 1)])

    def forward(self, x: Any, edges: Any) -> Any:
        source, target = edges
        for n, (layer, mine, score) in enumerate(zip(self.layers, self.mine, self.score)):
            y = layer(x)
            messages = y[source]
            zeros = y.new_zeros(x.shape[0], y.shape[1])
            if self.kind == "attention":
                weight = F.leaky_relu(score(torch.cat([messages, y[target]], 1))).squeeze(1)
                top = weight.new_full((x.shape[0],), -1e9).scatter_reduce(0, target, weight, "amax")
                weight = (weight - top.detach()[target]).exp()
                total = weight.new_zeros(x.shape[0]).index_add(0, target, weight)
                messages = messages * (weight / (total[target] + 1e-9))[:, None]
            summed = zeros.scatter_add(0, target[:, None].expand_as(messages), messages)
            if self.kind == "mean":
                count = y.new_zeros(x.shape[0]).index_add(0, target, torch.ones_like(messages[:, 0]))
                summed = summed / count.clamp(min=1)[:, None]
            x = summed + mine(x)
            x = x if n else F.relu(x)
        return x


def _graph(size: Size, kind: str) -> Example:
    nodes, edges, features, width, classes = (12, 40, 6, 8, 3) if size == "small" else (10000, 100000, 128, 64, 16)
    return Example(
        _Gcn(features, width, classes, kind),
        (torch.randn(nodes, features), torch.randint(nodes, (2, edges))),
        (torch.randint(classes, (nodes,)),),
        F.cross_entropy,
    )


@model("graph_sage", "other")
def _sage(size: Size) -> Example:
    return _graph(size, "mean")


@model("graph_attention", "other")
def _gat(size: Size) -> Example:
    return _graph(size, "attention")


class _PointNet(nn.Module):
    """A perceptron for each point, the maximum over points, a classifier."""

    def __init__(self, width: int, classes: int) -> None:
        super().__init__()
        self.align = nn.Linear(3, 9)
        self.body = nn.Sequential(
            nn.Conv1d(3, width, 1),
            nn.BatchNorm1d(width),
            nn.ReLU(),
            nn.Conv1d(width, 4 * width, 1),
            nn.BatchNorm1d(4 * width),
            nn.ReLU(),
        )
        self.out = nn.Linear(4 * width, classes)

    def forward(self, points: Any) -> Any:
        turn = self.align(points.mean(1)).view(-1, 3, 3) + torch.eye(3, device=points.device)
        return self.out(self.body((points @ turn).transpose(1, 2)).max(2)[0])


@model("pointnet", "other")
def _pointnet(size: Size) -> Example:
    return (
        classified(_PointNet(8, 5), torch.randn(3, 16, 3), 5)
        if size == "small"
        else classified(_PointNet(64, 40), torch.randn(16, 1024, 3), 40)
    )


class _Nerf(nn.Module):
    """A radiance field: encoded positions, a perceptron, and the colours along rays composed (Mildenhall 2020)."""

    def __init__(self, width: int, depth: int, octaves: int) -> None:
        super().__init__()
        self.octaves = octaves
        layers: list[nn.Module] = [nn.Linear(6 * octaves, width), nn.ReLU()]
        for _ in range(depth - 1):
            layers += [nn.Linear(width, width), nn.ReLU()]
        self.body, self.density = nn.Sequential(*layers), nn.Linear(width, 1)
        self.colour = nn.Sequential(nn.Linear(width + 3, width // 2), nn.ReLU(), nn.Linear(width // 2, 3), nn.Sigmoid())

    def forward(self, origins: Any, ways: Any, depths: Any) -> Any:
        points = origins[:, None] + ways[:, None] * depths[..., None]
        angles = points[..., None] * (2.0 ** torch.arange(self.octaves, device=points.device))
        y = self.body(torch.cat([angles.sin(), angles.cos()], -1).flatten(-2))
        density = F.relu(self.density(y)).squeeze(-1)
        colour = self.colour(torch.cat([y, ways[:, None].expand(-1, depths.shape[1], -1)], -1))
        gaps = F.pad(depths[:, 1:] - depths[:, :-1], (0, 1), value=1e2)
        alpha = 1 - torch.exp(-density * gaps)
        seen = torch.cumprod(F.pad(1 - alpha + 1e-6, (1, 0), value=1.0), 1)[:, :-1]
        return ((alpha * seen)[..., None] * colour).sum(1)


@model("nerf", "other")
def _nerf(size: Size) -> Example:
    rays, samples, module = (4, 6, _Nerf(16, 2, 3)) if size == "small" else (512, 64, _Nerf(128, 6, 10))
    depths = torch.rand(rays, samples).cumsum(1)
    return Example(module, (torch.randn(rays, 3), torch.randn(rays, 3), depths), (torch.rand(rays, 3),), F.mse_loss)


class _Siren(nn.Module):
    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(2, width), *(nn.Linear(width, width) for _ in range(depth))])
        self.out = nn.Linear(width, 3)

    def forward(self, x: Any) -> Any:
        for layer in self.layers:
            x = torch.sin(3 * layer(x))
        return self.out(x)


@model("siren", "other")
def _siren(size: Size) -> Example:
    count, width = (32, 16) if size == "small" else (16384, 256)
    return Example(_Siren(width, 3), (torch.rand(count, 2),), (torch.rand(count, 3),), F.mse_loss)


class _Vae(nn.Module):
    """A variational autoencoder of images; the noise is an input, so that results can be compared."""

    def __init__(self, width: int, latent: int, edge: int) -> None:
        super().__init__()
        self.shape = (2 * width, edge // 4, edge // 4)
        inner = 2 * width * (edge // 4) ** 2
        self.encode = nn.Sequential(
            nn.Conv2d(3, width, 4, 2, 1),
            nn.LeakyReLU(0.2),
            nn.Conv2d(width, 2 * width, 4, 2, 1),
            nn.BatchNorm2d(2 * width),
            nn.LeakyReLU(0.2),
            nn.Flatten(),
            nn.Linear(inner, 2 * latent),
        )
        self.start = nn.Linear(latent, inner)
        self.decode = nn.Sequential(
            nn.ConvTranspose2d(2 * width, width, 4, 2, 1),
            nn.BatchNorm2d(width),
            nn.ReLU(),
            nn.ConvTranspose2d(width, 3, 4, 2, 1),
            nn.Sigmoid(),
        )

    def forward(self, x: Any, noise: Any) -> Any:
        mean, log = self.encode(x).chunk(2, 1)
        z = mean + noise * (0.5 * log).exp()
        return self.decode(self.start(z).view(-1, *self.shape)), mean, log


def _evidence(output: Any, x: Any) -> Any:
    image, mean, log = output
    return F.mse_loss(image, x) - 0.5 * (1 + log - mean**2 - log.exp()).mean()


@model("vae", "other")
def _vae(size: Size) -> Example:
    width, latent, edge, batch = (4, 3, 16, 2) if size == "small" else (64, 64, 64, 32)
    x = torch.rand(batch, 3, edge, edge)
    return Example(_Vae(width, latent, edge), (x, torch.randn(batch, latent)), (x,), _evidence)


class _Quantizer(nn.Module):
    """VQ-VAE: the nearest code of each place, with straight-through gradients."""

    def __init__(self, width: int, codes: int) -> None:
        super().__init__()
        self.encode = nn.Sequential(nn.Conv2d(3, width, 4, 2, 1), nn.ReLU(), nn.Conv2d(width, width, 4, 2, 1))
        self.codes = nn.Embedding(codes, width)
        self.decode = nn.Sequential(
            nn.ConvTranspose2d(width, width, 4, 2, 1), nn.ReLU(), nn.ConvTranspose2d(width, 3, 4, 2, 1)
        )

    def forward(self, x: Any) -> Any:
        z = self.encode(x).permute(0, 2, 3, 1)
        flat = z.flatten(0, 2)
        nearest = torch.cdist(flat, self.codes.weight).argmin(1)
        found = self.codes(nearest).view_as(z)
        passed = z + (found - z).detach()
        return self.decode(passed.permute(0, 3, 1, 2)), F.mse_loss(found, z.detach()) + F.mse_loss(z, found.detach())


@model("vq_vae", "other")
def _vq_vae(size: Size) -> Example:
    width, codes, edge, batch = (4, 8, 16, 2) if size == "small" else (64, 256, 64, 16)
    x = torch.rand(batch, 3, edge, edge)
    return Example(_Quantizer(width, codes), (x,), (x,), lambda out, x: F.mse_loss(out[0], x) + out[1])


class _Gan(nn.Module):
    """DCGAN: a generator, and a discriminator of its images and of real ones."""

    def __init__(self, latent: int, width: int) -> None:
        super().__init__()
        up, down = nn.ConvTranspose2d, nn.Conv2d
        self.generate = nn.Sequential(
            up(latent, 4 * width, 4, 1, 0, bias=False),
            nn.BatchNorm2d(4 * width),
            nn.ReLU(),
            up(4 * width, 2 * width, 4, 2, 1, bias=False),
            nn.BatchNorm2d(2 * width),
            nn.ReLU(),
            up(2 * width, 3, 4, 2, 1, bias=False),
            nn.Tanh(),
        )
        self.judge = nn.Sequential(
            down(3, width, 4, 2, 1),
            nn.LeakyReLU(0.2),
            down(width, 2 * width, 4, 2, 1, bias=False),
            nn.BatchNorm2d(2 * width),
            nn.LeakyReLU(0.2),
            down(2 * width, 1, 4, 1, 0),
        )

    def forward(self, noise: Any, real: Any) -> Any:
        made = self.generate(noise)
        return made, self.judge(made).flatten(), self.judge(real).flatten()


@model("dcgan", "other")
def _dcgan(size: Size) -> Example:
    latent, width, batch = (6, 4, 2) if size == "small" else (100, 64, 32)
    return Example(
        _Gan(latent, width),
        (torch.randn(batch, latent, 1, 1), torch.randn(batch, 3, 16, 16)),
        (),
        lambda out: F.softplus(-out[1]).mean() + F.softplus(-out[2]).mean(),
    )


class _Flow(nn.Module):
    """RealNVP: affine couplings and the logarithm of the density."""

    def __init__(self, size: int, width: int, depth: int) -> None:
        super().__init__()
        self.nets = nn.ModuleList(
            nn.Sequential(nn.Linear(size // 2, width), nn.Tanh(), nn.Linear(width, size)) for _ in range(depth)
        )

    def forward(self, x: Any) -> Any:
        total = x.new_zeros(x.shape[0])
        for net in self.nets:
            a, b = x.chunk(2, 1)
            scale, shift = net(a).chunk(2, 1)
            scale = scale.tanh()
            x, total = torch.cat([b * scale.exp() + shift, a], 1), total + scale.sum(1)
        return total - 0.5 * (x**2).sum(1)


@model("real_nvp", "other")
def _real_nvp(size: Size) -> Example:
    count, width, module = (8, 4, _Flow(4, 8, 3)) if size == "small" else (4096, 64, _Flow(64, 256, 8))
    return Example(module, (torch.randn(count, width),), (), lambda out: -out.mean())


class _Torch(nn.Module):
    """PyTorch's own nn.Transformer: encoder and decoder with masks."""

    def __init__(self, words: int, width: int, heads: int, depth: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(words, width)
        self.body = nn.Transformer(width, heads, depth, depth, 2 * width, dropout=0.0, batch_first=True)
        self.out = nn.Linear(width, words)

    def forward(self, tokens: Any) -> Any:
        x = self.embed(tokens)
        mask = nn.Transformer.generate_square_subsequent_mask(x.shape[1])
        return self.out(self.body(x, x, tgt_mask=mask, src_key_padding_mask=tokens == 0))


@model("nn_transformer", "other")
def _nn_transformer(size: Size) -> Example:
    words, width, heads, depth, batch, length = (20, 16, 2, 1, 2, 6) if size == "small" else (4000, 256, 8, 3, 8, 64)
    return _text(_Torch(words, width, heads, depth), words, batch, length)


class _Video(nn.Module):
    """3-D convolutions (R3D)."""

    def __init__(self, width: int, classes: int) -> None:
        super().__init__()
        block = lambda i, o, s: nn.Sequential(nn.Conv3d(i, o, 3, s, 1, bias=False), nn.BatchNorm3d(o), nn.ReLU())  # noqa: E731
        self.body = nn.Sequential(
            block(3, width, 1), nn.MaxPool3d(2), block(width, 2 * width, 2), block(2 * width, 2 * width, 1)
        )
        self.out = nn.Linear(2 * width, classes)

    def forward(self, x: Any) -> Any:
        return self.out(self.body(x).mean((2, 3, 4)))


@model("r3d", "other")
def _r3d(size: Size) -> Example:
    if size == "small":
        return classified(_Video(4, 5), torch.randn(2, 3, 4, 8, 8), 5)
    return classified(_Video(32, 400), torch.randn(2, 3, 8, 64, 64), 400)


class _Forecast(nn.Module):
    """N-BEATS: residual perceptrons that explain the past and add up a forecast."""

    def __init__(self, past: int, future: int, width: int, depth: int) -> None:
        super().__init__()
        self.past = past
        self.blocks = nn.ModuleList(
            nn.Sequential(
                nn.Linear(past, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, past + future)
            )
            for _ in range(depth)
        )

    def forward(self, x: Any) -> Any:
        total: Any = 0
        for block in self.blocks:
            y = block(x)
            x, total = x - y[:, : self.past], total + y[:, self.past :]
        return total


@model("n_beats", "other")
def _n_beats(size: Size) -> Example:
    batch, past, future, width = (4, 10, 3, 16) if size == "small" else (1024, 96, 24, 512)
    return Example(
        _Forecast(past, future, width, 4), (torch.randn(batch, past),), (torch.randn(batch, future),), F.smooth_l1_loss
    )


class _Actor(nn.Module):
    """PPO's loss: actor and critic, the clipped ratio, entropy, normalized advantages."""

    def __init__(self, features: int, width: int, actions: int) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(features, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh())
        self.policy, self.value = nn.Linear(width, actions), nn.Linear(width, 1)

    def forward(self, x: Any, actions: Any, old: Any, gains: Any) -> Any:
        y = self.body(x)
        spread = torch.distributions.Categorical(logits=self.policy(y), validate_args=False)
        ratio = (spread.log_prob(actions) - old).exp()
        scaled = (gains - gains.mean()) / (gains.std() + 1e-8)
        loss = torch.max(-scaled * ratio, -scaled * ratio.clamp(0.8, 1.2)).mean()
        return loss - 0.01 * spread.entropy().mean() + 0.5 * F.mse_loss(self.value(y).squeeze(-1), gains)


@model("ppo", "other")
def _ppo(size: Size) -> Example:
    batch, features, width, actions = (8, 4, 16, 3) if size == "small" else (2048, 64, 256, 12)
    return Example(
        _Actor(features, width, actions),
        (torch.randn(batch, features), torch.randint(actions, (batch,)), -torch.rand(batch), torch.randn(batch)),
        (),
        lambda out: out,
    )


class _Gaussian(nn.Module):
    """A Gaussian process with a learned kernel: Cholesky, solves, logarithm of the determinant."""

    def __init__(self, features: int) -> None:
        super().__init__()
        self.scale, self.noise = nn.Parameter(torch.ones(features)), nn.Parameter(torch.tensor(0.1))

    def forward(self, x: Any, y: Any) -> Any:
        kernel = torch.exp(-0.5 * torch.cdist(x * self.scale, x * self.scale) ** 2)
        factor = torch.linalg.cholesky(kernel + self.noise * torch.eye(x.shape[0], device=x.device))
        solved = torch.cholesky_solve(y[:, None], factor).squeeze(-1)
        return 0.5 * y @ solved + factor.diagonal().log().sum()


@model("gaussian_process", "other")
def _gaussian(size: Size) -> Example:
    count = 12 if size == "small" else 256
    return Example(_Gaussian(3), (torch.randn(count, 3) * 3, torch.randn(count)), (), lambda out: out)


class _Spectral(nn.Module):
    """A Fourier neural operator: complex weights on the lowest frequencies."""

    def __init__(self, width: int, modes: int) -> None:
        super().__init__()
        self.modes = modes
        self.start, self.mix, self.out = nn.Conv1d(1, width, 1), nn.Conv1d(width, width, 1), nn.Conv1d(width, 1, 1)
        self.weight = nn.Parameter(torch.randn(width, width, modes, 2) / width)

    def forward(self, x: Any) -> Any:
        y = self.start(x)
        low = torch.fft.rfft(y)[..., : self.modes]
        mixed = torch.einsum("bim,iom->bom", low, torch.view_as_complex(self.weight))
        return self.out(F.gelu(torch.fft.irfft(mixed, n=x.shape[-1]) + self.mix(y)))


@model("fourier_operator", "other")
def _fourier(size: Size) -> Example:
    module, x = (
        (_Spectral(4, 4), torch.randn(2, 1, 16)) if size == "small" else (_Spectral(64, 16), torch.randn(16, 1, 1024))
    )
    return Example(module, (x,))
