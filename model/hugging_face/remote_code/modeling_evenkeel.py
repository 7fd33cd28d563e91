"""A decoder as Evenkeel trains it, in plain PyTorch, for evaluation with the usual tools.

Every setting of a model is represented: kinds of norm and where they are, normalisation of queries and keys
with gains for each head, sinks, softcap, windows, biases. Attention is written out, without a cache of keys
and values: `generate` computes each token from the whole sequence.

B batch, T positions, N heads, D head width.
"""

import math

import torch
import torch.nn.functional as F
from torch import nn
from transformers import GenerationMixin, PreTrainedModel
from transformers.modeling_outputs import CausalLMOutput

from .configuration_evenkeel import EvenkeelConfig


def named_layers(text, count):
    """The layers that a list such as "0,3-5" names; "" names all."""
    if not text:
        return set(range(count))
    layers = set()
    for part in text.split(","):
        first, _, last = part.partition("-")
        layers.update(range(int(first), int(last or first) + 1))
    return layers


def layer_attention(model, layer):
    """The settings of one layer's attention."""
    attention = dict(model["attention"])
    if layer not in named_layers(model["qk_norm_layers"], model["num_layers"]):
        attention["qk_norm"] = {"kind": "none"}
    interval = model["global_interval"]
    if interval == 0:
        return attention
    if (layer + 1) % interval == 0:
        attention["window"] = 0
    elif model["local_rope_theta"] > 0:
        local = {"theta": model["local_rope_theta"], "scaling": "none"}
        attention["rope"] = {**attention["rope"], **local}
    return attention


def rope_frequencies(rope, head_dim):
    """The angular frequency of each pair of channels, and what cos and sin are multiplied by."""
    width = round(rope["rotary_fraction"] * head_dim)
    theta, factor, scaling = rope["theta"], rope["factor"], rope["scaling"]
    frequencies = [theta ** (-2.0 * pair / width) for pair in range(width // 2)]
    context = rope["original_max_position"]
    if scaling == "linear":
        frequencies = [f / factor for f in frequencies]
    elif scaling == "llama3":
        low, high = rope["low_freq_factor"], rope["high_freq_factor"]

        def scaled(f):
            keep = min(max((context * f / (2 * math.pi) - low) / (high - low), 0.0), 1.0)
            return keep * f + (1.0 - keep) * f / factor

        frequencies = [scaled(f) for f in frequencies]
    elif scaling == "yarn":

        def pair_of(turns):
            return width * math.log(context / turns / (2 * math.pi)) / (2 * math.log(theta))

        low = max(0.0, math.floor(pair_of(rope["beta_fast"])))
        high = min(width - 1.0, math.ceil(pair_of(rope["beta_slow"])))
        ramp = max(high - low, 1e-3)
        slow = [min(max((pair - low) / ramp, 0.0), 1.0) for pair in range(width // 2)]
        frequencies = [f * (1.0 - s + s / factor) for f, s in zip(frequencies, slow)]
        return frequencies, rope["attention_factor"] or 0.1 * math.log(factor) + 1.0
    return frequencies, 1.0


def rotate(x, positions, rope):
    """x [B, T, N, D] fp32, turned by its positions [B, T]."""
    frequencies, magnitude = rope_frequencies(rope, x.shape[-1])
    if not frequencies:
        return x
    frequencies = torch.tensor(frequencies, dtype=torch.float64, device=x.device)
    angles = positions.double()[:, :, None, None] * frequencies
    cos, sin = (magnitude * angles.cos()).float(), (magnitude * angles.sin()).float()
    pairs = frequencies.numel()
    turning, rest = x[..., : 2 * pairs], x[..., 2 * pairs :]
    if rope["layout"] == "interleaved":
        a, b = turning[..., 0::2], turning[..., 1::2]
        turned = torch.stack((a * cos - b * sin, b * cos + a * sin), dim=-1).flatten(-2)
    else:
        a, b = turning[..., :pairs], turning[..., pairs:]
        turned = torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1)
    return torch.cat((turned, rest), dim=-1)


class StreamNorm(nn.Module):
    """RMSNorm or LayerNorm of the residual stream."""

    def __init__(self, model):
        super().__init__()
        settings = model["norm"]
        self.centred = settings["kind"] == "layer_norm"
        self.offset = settings["gain_offset"]
        self.eps = model["norm_eps"]
        self.weight = nn.Parameter(torch.ones(model["width"]))
        self.bias = nn.Parameter(torch.zeros(model["width"])) if settings["bias"] else None

    def forward(self, x):
        y = x.float()
        if self.centred:
            y = y - y.mean(-1, keepdim=True)
        y = y * torch.rsqrt(y.square().mean(-1, keepdim=True) + self.eps)
        y = y * (self.offset + self.weight.float())
        if self.bias is not None:
            y = y + self.bias.float()
        return y.to(x.dtype)


class HeadNorm(nn.Module):
    """Normalises queries or keys [B, T, N, D] and applies their gains; returns fp32."""

    def __init__(self, settings, heads, head_dim, is_query):
        super().__init__()
        self.settings = settings
        shapes = {"per_head_channel": (heads, head_dim), "shared_channel": (head_dim,)}
        if is_query:  # a factor of the logits
            shapes.update(per_head_scalar=(heads,), scalar=(1,))
        shape = shapes.get(settings["gain"])
        self.weight = None if shape is None else nn.Parameter(torch.ones(shape))

    def gain(self):
        settings, weight = self.settings, self.weight.float()
        if settings["gain_form"] == "exponential":
            gain = weight.clamp(max=math.log(settings["gain_limit"])).exp()
        else:
            gain = settings["gain_offset"] + weight / settings["gain_unit"]
        return gain[:, None] if settings["gain"] == "per_head_scalar" else gain

    def forward(self, x):
        settings = self.settings
        y = x.float()
        if settings["kind"] == "layer_norm":
            y = y - y.mean(-1, keepdim=True)
        axes = (-2, -1) if settings["scope"] == "full_width" else (-1,)
        squares = y.square()
        total = squares.sum(axes, True) if settings["kind"] == "l2" else squares.mean(axes, True)
        y = y * torch.rsqrt(total + settings["eps"])
        return y if self.weight is None else y * self.gain()


class Attention(nn.Module):
    def __init__(self, model, layer):
        super().__init__()
        self.settings = layer_attention(model, layer)
        width, self.head_dim = model["width"], self.settings["head_dim"]
        self.heads, self.kv_heads = self.settings["num_heads"], self.settings["num_kv_heads"]
        query, key = self.heads * self.head_dim, self.kv_heads * self.head_dim
        bias = self.settings["qkv_bias"]
        self.q_proj = nn.Linear(width, query, bias=bias)
        self.k_proj = nn.Linear(width, key, bias=bias)
        self.v_proj = nn.Linear(width, key, bias=bias)
        self.o_proj = nn.Linear(query, width, bias=self.settings["output_bias"])
        norm = self.settings["qk_norm"]
        self.has_norm = norm["kind"] != "none"
        if self.has_norm:
            self.q_norm = HeadNorm(norm, self.heads, self.head_dim, True)
            self.k_norm = HeadNorm(norm, self.kv_heads, self.head_dim, False)
        self.scale = self.settings["softmax_scale"]
        if self.scale == 0:
            self.scale = 1.0 if norm["kind"] == "l2" else self.head_dim**-0.5
        self.sinks = None
        if self.settings["sink"] == "learned":
            self.sinks = nn.Parameter(torch.zeros(self.heads))

    def forward(self, x, positions, visible):
        """visible [B, T, T]: which keys a query may see by order and padding."""
        batch, length = x.shape[:2]
        q = self.q_proj(x).view(batch, length, self.heads, self.head_dim)
        k = self.k_proj(x).view(batch, length, self.kv_heads, self.head_dim)
        v = self.v_proj(x).view(batch, length, self.kv_heads, self.head_dim)
        if self.has_norm:
            q, k = self.q_norm(q), self.k_norm(k)
        rope = self.settings["rope"]
        q, k = (rotate(part.float(), positions, rope).to(x.dtype) for part in (q, k))
        group = self.heads // self.kv_heads
        q, k, v = (part.transpose(1, 2) for part in (q, k, v))  # [B, N, T, D]
        k, v = k.repeat_interleave(group, dim=1), v.repeat_interleave(group, dim=1)

        logits = (q @ k.transpose(2, 3)).float() * self.scale  # [B, N, T, T]
        if self.settings["softcap"] > 0:
            logits = self.settings["softcap"] * torch.tanh(logits / self.settings["softcap"])
        if self.settings["window"] > 0:
            index = torch.arange(length, device=x.device)
            visible = visible & (index > index[:, None] - self.settings["window"])
        logits = logits.masked_fill(~visible[:, None], float("-inf"))
        if self.settings["sink"] != "none":
            sinks = logits.new_zeros(self.heads) if self.sinks is None else self.sinks.float()
            column = sinks[None, :, None, None].expand(batch, -1, length, 1)
            weights = torch.cat((logits, column), dim=-1).softmax(-1)[..., :-1]
        else:
            weights = logits.softmax(-1)
        weights = weights.nan_to_num(0.0)  # a row of padding sees nothing
        out = (weights.to(v.dtype) @ v).transpose(1, 2).reshape(batch, length, -1)
        return self.o_proj(out)


class FeedForward(nn.Module):
    def __init__(self, model):
        super().__init__()
        width, inner, bias = model["width"], model["feed_forward_width"], model["feed_forward_bias"]
        self.activation = model["activation"]
        if self.activation != "gelu":
            self.gate_proj = nn.Linear(width, inner, bias=bias)
        self.up_proj = nn.Linear(width, inner, bias=bias)
        self.down_proj = nn.Linear(inner, width, bias=bias)

    def forward(self, x):
        up = self.up_proj(x)
        if self.activation == "gelu":
            return self.down_proj(F.gelu(up))
        gate = self.gate_proj(x)
        gate = F.silu(gate) if self.activation == "swiglu" else F.gelu(gate, approximate="tanh")
        return self.down_proj(gate * up)


class DecoderBlock(nn.Module):
    def __init__(self, model, layer):
        super().__init__()
        kind = model["architecture"]
        self.parallel = kind == "parallel"
        self.self_attn = Attention(model, layer)
        self.mlp = FeedForward(model)
        # Identity where this kind of block has no norm.
        before, after = kind != "post_norm", kind in ("post_norm", "sandwich_norm")
        self.attention_norm = StreamNorm(model) if before else nn.Identity()
        self.feed_forward_norm = StreamNorm(model) if before and not self.parallel else nn.Identity()
        self.attention_post_norm = StreamNorm(model) if after else nn.Identity()
        self.feed_forward_post_norm = StreamNorm(model) if after else nn.Identity()

    def forward(self, x, positions, visible):
        normed = self.attention_norm(x)
        attention = self.self_attn(normed, positions, visible)
        if self.parallel:
            return x + attention + self.mlp(normed)
        x = x + self.attention_post_norm(attention)
        return x + self.feed_forward_post_norm(self.mlp(self.feed_forward_norm(x)))


class Decoder(nn.Module):
    def __init__(self, model):
        super().__init__()
        self.embed_tokens = nn.Embedding(model["vocab_size"], model["width"])
        self.layers = nn.ModuleList(DecoderBlock(model, i) for i in range(model["num_layers"]))
        self.norm = StreamNorm(model)


class EvenkeelForCausalLM(PreTrainedModel, GenerationMixin):
    config_class = EvenkeelConfig
    base_model_prefix = "model"
    _no_split_modules = ["DecoderBlock"]

    def __init__(self, config):
        super().__init__(config)
        settings = config.evenkeel
        self.model = Decoder(settings)
        self.lm_head = None
        if not settings["tied_embeddings"]:
            self.lm_head = nn.Linear(settings["width"], settings["vocab_size"], bias=False)
        self.post_init()

    def get_input_embeddings(self):
        return self.model.embed_tokens

    def set_input_embeddings(self, value):
        self.model.embed_tokens = value

    def get_output_embeddings(self):
        return self.lm_head

    def set_output_embeddings(self, value):
        self.lm_head = value

    def prepare_inputs_for_generation(self, input_ids, attention_mask=None, **kwargs):
        return {"input_ids": input_ids, "attention_mask": attention_mask}

    def forward(self, input_ids=None, attention_mask=None, position_ids=None, inputs_embeds=None,
                labels=None, logits_to_keep=0, **kwargs):
        """input_ids [B, T]; attention_mask [B, T], 0 where there is padding; labels [B, T], -100 counts not."""
        settings = self.config.evenkeel
        x = self.model.embed_tokens(input_ids) if inputs_embeds is None else inputs_embeds
        x = x * settings["embedding_scale"]
        batch, length = x.shape[:2]
        if attention_mask is None:
            attention_mask = torch.ones(batch, length, dtype=torch.long, device=x.device)
        real = attention_mask.bool()
        if position_ids is None:
            position_ids = (real.long().cumsum(-1) - 1).clamp(min=0)
        visible = real[:, None, :].expand(batch, length, length)
        if settings["attention"]["causal"]:
            visible = visible.tril()
        for layer in self.model.layers:
            x = layer(x, position_ids.expand(batch, length), visible)
        x = self.model.norm(x)[:, -logits_to_keep:]
        weight = self.model.embed_tokens.weight if self.lm_head is None else self.lm_head.weight
        logits = F.linear(x, weight) * settings["logit_scale"]
        loss = None
        if labels is not None:
            loss = F.cross_entropy(logits[:, :-1].flatten(0, 1).float(), labels[:, 1:].flatten())
        return CausalLMOutput(loss=loss, logits=logits)
