"""RMSNorm of q and k, RoPE and causal attention as a user of PyTorch writes them.

B batch, T positions, H query heads, K key/value heads, D head width.
"""

import torch
import torch.nn.functional as F

from settings import EPS

TYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}


def rotation(length, head_dim, dtype):
    """cos and sin, [T, 1, D/2] each, of the half-split layout."""
    frequencies = 10000.0 ** (-torch.arange(0, head_dim, 2, dtype=torch.float64) / head_dim)
    angles = torch.arange(length, dtype=torch.float64)[:, None, None] * frequencies
    return angles.cos().to(dtype), angles.sin().to(dtype)


def norm_and_rotate(x, gain, cos, sin):
    """x [B, T, N, D], gain [N, D]."""
    x = F.rms_norm(x, x.shape[-1:], eps=EPS) * gain
    first, second = x.chunk(2, -1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), -1)


def attend(q, k, v, q_gain, k_gain, cos, sin):
    """q [B, T, H, D], k and v [B, T, K, D]; returns [B, T, H, D]."""
    q, k = norm_and_rotate(q, q_gain, cos, sin), norm_and_rotate(k, k_gain, cos, sin)
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    grouped = q.shape[1] != k.shape[1]
    return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=grouped).transpose(1, 2)


class Attention:
    """One shape in one mode: {"type": "fp32" | "bf16", "compiled": bool, "backward": bool}."""

    def __init__(self, shape, mode, inputs=None):
        dtype = TYPES[mode["type"]]
        batch, length, head_dim = shape["batch"], shape["tokens"], shape["head_dim"]
        query = (batch, length, shape["heads"], head_dim)
        key = (batch, length, shape["kv_heads"], head_dim)
        made = inputs or {
            "q": torch.randn(query), "k": torch.randn(key), "v": torch.randn(key), "dout": torch.randn(query),
            "q_gain": torch.ones(query[2:]), "k_gain": torch.ones(key[2:])}
        made = {name: tensor.to(dtype) for name, tensor in made.items()}
        self.dout = made.pop("dout")
        self.backward = mode["backward"]
        self.inputs = [made[name].requires_grad_(self.backward) for name in ("q", "k", "v", "q_gain", "k_gain")]
        self.rotation = rotation(length, head_dim, dtype)
        self.function = torch.compile(attend, dynamic=False) if mode["compiled"] else attend

    def __call__(self):
        with torch.set_grad_enabled(self.backward):
            out = self.function(*self.inputs, *self.rotation)
        return (out, *torch.autograd.grad(out, self.inputs, self.dout)) if self.backward else (out,)


NAMES = ("out", "dq", "dk", "dv", "dq_gain", "dk_gain")  # of what a call returns
