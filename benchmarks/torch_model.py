"""The decoder that configs/ train, its AdamW step, and its tensor-parallel form, as a user of PyTorch writes them.

Pre-norm blocks with gains for each head of q and k (torch_attention.py), SwiGLU, an untied output projection. Weights and
optimizer state are fp32; what a pass computes in is the mode's type:
  fp32      all of it
  autocast  bf16 where torch.autocast says so
  masters   bf16 weights, remade from fp32 masters after each step

B batch, T positions, C width, H query heads, K key/value heads, D head width, F feed-forward width, V vocabulary.
"""

import json
import os

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

from settings import EPS, OPTIMIZER, model_settings
from torch_attention import attend, rotation


class StreamNorm(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x):
        return F.rms_norm(x, x.shape[-1:], self.weight.to(x.dtype), EPS)


class Attention(nn.Module):
    def __init__(self, shape):
        super().__init__()
        width, self.head_dim = shape["width"], shape["head_dim"]
        heads, kv_heads = shape["heads"], shape["kv_heads"]
        self.q_proj = nn.Linear(width, heads * self.head_dim, bias=False)
        self.k_proj = nn.Linear(width, kv_heads * self.head_dim, bias=False)
        self.v_proj = nn.Linear(width, kv_heads * self.head_dim, bias=False)
        self.o_proj = nn.Linear(heads * self.head_dim, width, bias=False)
        self.q_gain = nn.Parameter(torch.ones(heads, self.head_dim))
        self.k_gain = nn.Parameter(torch.ones(kv_heads, self.head_dim))

    def forward(self, x, cos, sin):
        q, k, v = (project(x).unflatten(-1, (-1, self.head_dim))
                   for project in (self.q_proj, self.k_proj, self.v_proj))
        gains = (gain.to(q.dtype) for gain in (self.q_gain, self.k_gain))
        return self.o_proj(attend(q, k, v, *gains, cos, sin).flatten(-2))


class FeedForward(nn.Module):
    def __init__(self, shape):
        super().__init__()
        self.gate_proj = nn.Linear(shape["width"], shape["feed_forward"], bias=False)
        self.up_proj = nn.Linear(shape["width"], shape["feed_forward"], bias=False)
        self.down_proj = nn.Linear(shape["feed_forward"], shape["width"], bias=False)

    def forward(self, x):
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Block(nn.Module):
    def __init__(self, shape):
        super().__init__()
        self.attention_norm = StreamNorm(shape["width"])
        self.self_attn = Attention(shape)
        self.feed_forward_norm = StreamNorm(shape["width"])
        self.mlp = FeedForward(shape)

    def forward(self, x, cos, sin):
        x = x + self.self_attn(self.attention_norm(x), cos, sin)
        return x + self.mlp(self.feed_forward_norm(x))


class Model(nn.Module):
    def __init__(self, shape):
        super().__init__()
        self.embed_tokens = nn.Embedding(shape["vocab"], shape["width"])
        self.layers = nn.ModuleList(Block(shape) for _ in range(shape["layers"]))
        self.norm = StreamNorm(shape["width"])
        self.lm_head = nn.Linear(shape["width"], shape["vocab"], bias=False)
        for name, parameter in self.named_parameters():
            if parameter.dim() == 2 and not name.endswith("gain"):
                nn.init.normal_(parameter, std=0.02)

    def forward(self, tokens, cos, sin):
        x = self.embed_tokens(tokens)
        for layer in self.layers:
            x = layer(x, cos, sin)
        return self.lm_head(self.norm(x))

    def loss(self, tokens, targets, cos, sin):
        return F.cross_entropy(self(tokens, cos, sin).flatten(0, 1).float(), targets.flatten())


def shard(model):
    """The model over all ranks: one sum in each half of a block, forward and backward, as PyTorch's tutorial has it."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate, Shard
    from torch.distributed.tensor.parallel import (
        ColwiseParallel, PrepareModuleInput, RowwiseParallel, parallelize_module)
    ranks, rank = dist.get_world_size(), dist.get_rank()
    mesh = init_device_mesh("cpu", (ranks,))

    def whole_input(count):
        rest = (None,) * (count - 1)
        return PrepareModuleInput(input_layouts=(Replicate(), *rest),
                                  desired_input_layouts=(Replicate(), *rest))

    for block in model.layers:
        attention = block.self_attn
        for name in ("q_gain", "k_gain"):  # live with their heads
            part = getattr(attention, name).detach().chunk(ranks)[rank].clone()
            setattr(attention, name, nn.Parameter(part))
        parallelize_module(block, mesh, {
            "self_attn": whole_input(3),
            "self_attn.q_proj": ColwiseParallel(), "self_attn.k_proj": ColwiseParallel(),
            "self_attn.v_proj": ColwiseParallel(), "self_attn.o_proj": RowwiseParallel(),
            "mlp": whole_input(1),
            "mlp.gate_proj": ColwiseParallel(), "mlp.up_proj": ColwiseParallel(), "mlp.down_proj": RowwiseParallel()})
    parallelize_module(model, mesh, {
        "embed_tokens": RowwiseParallel(input_layouts=Replicate()),
        "lm_head": ColwiseParallel(output_layouts=Shard(-1), use_local_output=False)})


def local(tensor):
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor


class Training:
    """Steps of AdamW on one batch; {"type": ..., "compiled": bool}."""

    def __init__(self, shape, mode, weights=None, tokens=None):
        torch.manual_seed(1)
        self.is_parallel = dist.is_available() and dist.is_initialized()
        self.autocast = mode["type"] == "autocast"
        self.model = Model(shape)
        if weights is not None:
            self.model.load_state_dict(weights)
        if self.is_parallel:
            shard(self.model)
        dtype = torch.float32 if mode["type"] == "fp32" else torch.bfloat16
        self.weights, self.masters = list(self.model.parameters()), None
        names = [name for name, _ in self.model.named_parameters()]
        if mode["type"] == "masters":
            self.masters = [p.detach().clone() for p in self.weights]
            self.model.to(dtype)
            self.weights = list(self.model.parameters())
        optimized = self.masters or self.weights
        # Replicated and sharded tensors are not mixed in one group.
        groups = {}
        for name, parameter in zip(names, optimized):
            decays = parameter.dim() == 2 and not name.endswith("gain")
            groups.setdefault((decays, local(parameter) is parameter), []).append(parameter)
        self.groups = list(groups.values())
        self.optimizer = torch.optim.AdamW(
            [{"params": group, "weight_decay": OPTIMIZER["decay"] if decays else 0.0} for (decays, _), group in groups.items()],
            lr=OPTIMIZER["rate"], betas=OPTIMIZER["betas"], eps=OPTIMIZER["epsilon"], fused=True)
        self.sharded = [hasattr(p, "to_local") or name.endswith("gain") for name, p in zip(names, optimized)]
        self.optimized = optimized
        self.rotation = rotation(shape["tokens"], shape["head_dim"], dtype)
        if tokens is None:
            tokens = torch.randint(shape["vocab"], (shape["batch"], shape["tokens"] + 1))
        self.tokens, self.targets = tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()
        self.loss = torch.compile(self.model.loss, dynamic=False) if mode["compiled"] else self.model.loss

    def clip(self):
        if not self.is_parallel:
            nn.utils.clip_grad_norm_(self.optimized, OPTIMIZER["clip"], foreach=True)
            return
        for p in self.optimized:  # a sharded embedding's gradient comes whole
            if hasattr(p, "placements"):
                p.grad = p.grad.redistribute(placements=p.placements)
        gradients = [local(p.grad) for p in self.optimized]
        norms = torch.stack(torch._foreach_norm(gradients)).square()  # pylint: disable=protected-access
        sharded = torch.tensor(self.sharded)
        total = norms[sharded].sum()
        dist.all_reduce(total)
        norm = (total + norms[~sharded].sum()).sqrt()
        torch._foreach_mul_(gradients, (OPTIMIZER["clip"] / (norm + 1e-6)).clamp(max=1.0))  # pylint: disable=protected-access

    def __call__(self):
        from torch.distributed.tensor.parallel import loss_parallel
        with torch.autocast("cpu", torch.bfloat16, enabled=self.autocast):
            if self.is_parallel:
                with loss_parallel():
                    loss = self.loss(self.tokens, self.targets, *self.rotation)
                    loss.backward()
            else:
                loss = self.loss(self.tokens, self.targets, *self.rotation)
        if not self.is_parallel:
            loss.backward()
        if self.masters is not None:
            for master, weight in zip(self.masters, self.weights):
                master.grad = weight.grad.to(master.dtype)
                weight.grad = None
        self.clip()
        self.optimizer.step()
        self.optimizer.zero_grad()
        if self.masters is not None:
            with torch.no_grad():
                torch._foreach_copy_([*map(local, self.weights)], [*map(local, self.masters)])  # pylint: disable=protected-access
        value = loss.full_tensor() if hasattr(loss, "full_tensor") else loss
        return value.item()


def folder_names(name):
    """A parameter of Model, as `evenkeel export --remote-code` names it."""
    name = name.replace("q_gain", "q_norm.weight").replace("k_gain", "k_norm.weight")
    return name if name.startswith("lm_head") else "model." + name


def write_folder(shape, folder):
    """A random model in a folder that Evenkeel reads, and a batch of tokens beside it, for steps and without the last token for logits."""
    from safetensors.torch import save_file
    torch.manual_seed(2)
    model = Model(shape)
    for name, parameter in model.named_parameters():
        if parameter.dim() == 1 or name.endswith("gain"):
            parameter.data += 0.3 * torch.randn_like(parameter)
    os.makedirs(folder, exist_ok=True)
    weights = {folder_names(name): p.detach() for name, p in model.named_parameters()}
    save_file(weights, os.path.join(folder, "model.safetensors"), metadata={"format": "pt"})
    with open(os.path.join(folder, "config.json"), "w", encoding="utf-8") as file:
        json.dump({"model_type": "evenkeel", "evenkeel": model_settings(shape)}, file, indent=2)
    tokens = torch.randint(shape["vocab"], (shape["batch"], shape["tokens"] + 1), dtype=torch.int32)
    save_file({"tokens": tokens}, folder + "_batch.safetensors")
    save_file({"tokens": tokens[:, :-1].contiguous()}, folder + "_tokens.safetensors")
    return {}


def train_folder(shape, mode, folder, steps):
    """Losses of steps from that folder's weights, and the logits before the first beside it."""
    from safetensors.torch import load_file, save_file
    weights = load_file(os.path.join(folder, "model.safetensors"))
    tokens = load_file(folder + "_batch.safetensors")["tokens"].long()
    weights = {name: weights[folder_names(name)] for name, _ in Model(shape).named_parameters()}
    training = Training(shape, mode, weights, tokens)
    if not training.is_parallel and mode["type"] == "fp32":
        with torch.no_grad():
            logits = training.model(training.tokens, *training.rotation)
        save_file({"logits": logits.contiguous()}, folder + "_logits_torch.safetensors")
    return {"losses": [training() for _ in range(steps)]}
