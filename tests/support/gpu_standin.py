"""The triton backend on a CPU: its own layers, batches, graphs and pipeline, with PyTorch's CPU bodies for its kernels.

``TorchBodies`` rounds if the kernels round, and only there, so that it shows what a dtype costs; ``Plans`` computes
the folded calibration as ``kernels.flow`` defines it.
"""

import numpy as np
import torch

from fastflow import Runtime
from fastflow.backends import choose as encoder
from fastflow.backends import triton as backend_triton
from fastflow.kernels.encoder import triton as encoder_triton
from fastflow.kernels.flow import execute
from fastflow.model.encoder.weights import load_weights
from fastflow.plan import fold

from support.standin import StandIn
from support.tolerances import EMBEDDING

GELU = {"gelu": "none", "gelu_tanh": "tanh"}


class TorchBodies(encoder_triton.TritonEncoder):
    """A TritonEncoder whose kernels are PyTorch's operations in float32, rounded to the dtype at the end."""

    def _dot(self, dtype):
        return None

    def launch(self, body, grid, constants, **a):
        if 0 not in grid:
            getattr(self, f"_{body}_body")(**a)

    def _embed_body(self, id_ptr, position_ptr, word_ptr, place_ptr, scale_ptr, bias_ptr, y_ptr, D, eps):
        x = word_ptr[id_ptr.long()].float() + place_ptr[position_ptr.long()]
        y_ptr.copy_(torch.nn.functional.layer_norm(x, (D,), scale_ptr, bias_ptr, eps))

    def _add_norm_body(self, x_ptr, residual_ptr, add_ptr, scale_ptr, bias_ptr, y_ptr, D, eps):
        x = x_ptr.float() + add_ptr + residual_ptr.float()
        y_ptr.copy_(torch.nn.functional.layer_norm(x, (D,), scale_ptr, bias_ptr, eps))

    def _activate_body(self, x_ptr, add_ptr, D):
        x, kind = x_ptr.float() + add_ptr, self.shape.activation
        x_ptr.copy_(torch.relu(x) if kind == "relu" else torch.nn.functional.gelu(x, approximate=GELU[kind]))

    def _multiply_activate_body(self, x_ptr, weight_ptr, add_ptr, y_ptr, N, D, width):
        y_ptr[:] = torch.nn.functional.linear(x_ptr, weight_ptr)
        self._activate_body(y_ptr, add_ptr, width)

    def _attend_body(self, qkv_ptr, offset_ptr, y_ptr, heads, head, blocks, scale):
        for first, last in zip(offset_ptr.tolist(), offset_ptr.tolist()[1:], strict=False):
            q, k, v = qkv_ptr[first:last].view(last - first, 3, heads, head).permute(1, 2, 0, 3).float()
            weights = torch.exp((q @ k.mT) * scale - (q @ k.mT * scale).amax(-1, keepdim=True)) if last > first else q
            if last > first:
                y = weights.to(self.dtype).float() @ v / weights.sum(-1, keepdim=True)
                y_ptr[first:last] = y.transpose(0, 1).reshape(last - first, -1).to(self.dtype)

    def _pool_first_body(self, x_ptr, offset_ptr, y_ptr, D):
        first, last = offset_ptr[:-1].long(), offset_ptr[1:].long()
        y_ptr.copy_(torch.where((first < last)[:, None], x_ptr[first.clamp(max=len(x_ptr) - 1)].float(), 0.0))


class Plans:
    torch, device = torch, torch.device("cpu")

    def __init__(self, plans, weights=None, shares=None):
        self.weights, self.shares = weights, None if shares is None else torch.tensor(shares)[:, None, None]
        self.plans = [plan.astype(np.float32) for plan in plans]
        self.outputs = self.plans[-1].outputs

    def __call__(self, x, normalize=False, offsets=None, ids=None):
        z = (x if offsets is None else self.pool(x, offsets, ids)).numpy()
        for plan in self.plans:
            z = execute(plan, z)
        z = torch.from_numpy(np.ascontiguousarray(z))
        return z / z.norm(dim=1, keepdim=True).clamp(min=1e-12) if normalize else z

    def pool(self, hidden, offsets, ids=None):
        pooled = torch.zeros(len(offsets) - 1, hidden.shape[2])
        for i, (a, b) in enumerate(zip(offsets.tolist(), offsets.tolist()[1:], strict=False)):
            if a < b:
                weights = torch.ones(b - a) if self.weights is None else torch.from_numpy(self.weights)[ids[a:b].long()]
                states = hidden[:, a:b].float()
                states = states.mean(dim=0) if self.shares is None else (self.shares * states).sum(dim=0)
                pooled[i] = weights @ states / weights.sum()
        return pooled


def use_standin(monkeypatch, self_test=False, **settings):
    """Let Runtime(backend='triton') open on a stand-in, which is returned; ``settings`` are the StandIn's.

    Without ``self_test`` a backend computes nothing at opening, so that ``log`` begins with what a test asks for.
    """
    device = StandIn(**settings)
    if not self_test:
        monkeypatch.setattr(encoder, "_check_gpu", lambda opened, model: None)

    def open_both(self, model, config):
        weights = load_weights(model.encoder, config, self._shape, np.float32)
        bodies = TorchBodies(weights, self._shape, model.pooling.layers, self.dtype, "cpu")
        return bodies, Plans(fold(model.calibration, self.pooled_dim), model.pooling.weights, model.pooling.shares)

    monkeypatch.setattr("fastflow.kernels.launch.prepare", lambda _: (torch, 1))
    monkeypatch.setattr(encoder, "_has_cuda", lambda: True)
    monkeypatch.setattr(encoder, "_count_gpus", lambda: 2)
    monkeypatch.setattr(backend_triton.TritonBackend, "_open", open_both)
    monkeypatch.setattr(
        backend_triton.TritonBackend, "_open_pooler",
        lambda self, model: Plans(fold((), self._shape.hidden), model.pooling.weights, model.pooling.shares),
    )  # fmt: skip
    monkeypatch.setattr(backend_triton.TritonBackend, "_open_device", lambda self: device)
    return device


def on_standin(model, dtype="float32"):
    return Runtime(model, dtype=dtype, backend="triton")


def unit(z):
    return z / np.linalg.norm(z, axis=1, keepdims=True)


def assert_same(found, exact, limit=EMBEDDING):
    assert found.shape == exact.shape
    assert np.isfinite(found).all()
    assert exact.std() > 0.01
    assert np.abs(unit(found) - unit(exact)).max() <= limit


def captures(device):
    return sum(entry[0] == "capture" for entry in device.log)
