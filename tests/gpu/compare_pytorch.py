#!/usr/bin/env python3
"""What PyTorch reaches on this GPU at the sizes of `evenkeel bench --device cuda`, in the same JSON.

Attention forward and backward by scaled_dot_product_attention's flash and cuDNN back ends, and QK-norm with RoPE as
torch.compile makes it. Times are device time between two events around calls in a row that last at least
10 ms; the median and the best of 15 rounds. Times only: no result is compared.

Usage: compare_pytorch.py [OURS.json]. With what Evenkeel's benchmark printed on the same machine, the ratios of the two
are in the JSON too, and on standard error as a table.
"""

import json
import sys

import torch
import torch._functorch.config as functorch_config
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

TOKENS, HEADS, KV_HEADS = 16384, 32, 8
ROUNDS, SECONDS = 15, 0.010
TYPE = torch.bfloat16
BACK_ENDS = {"flash": SDPBackend.FLASH_ATTENTION, "cuDNN": SDPBackend.CUDNN_ATTENTION}


def gpu_seconds(body, calls):
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    for _ in range(calls):
        body()
    end.record()
    end.synchronize()
    return 1e-3 * begin.elapsed_time(end) / calls


def measure(body):
    """Seconds of a call, one number a round."""
    for _ in range(3):
        body()
    calls = max(1, round(SECONDS / max(gpu_seconds(body, 1), 1e-7)))
    return sorted(gpu_seconds(body, calls) for _ in range(ROUNDS))


def line(name, by, work, unit, seconds):
    return {
        "name": name,
        "by": by,
        "value": work / seconds[len(seconds) // 2],
        "unit": unit,
        "best": work / seconds[0],
        "shares": [],
    }


def random(*shape, needs_gradient=False):
    return torch.randn(shape, device="cuda", dtype=TYPE, requires_grad=needs_gradient)


def attention_lines(back_end, head_dim, length, causal):
    batch = TOKENS // length
    q = random(batch, HEADS, length, head_dim, needs_gradient=True)
    k, v = (random(batch, KV_HEADS, length, head_dim, needs_gradient=True) for _ in range(2))
    dout = random(batch, HEADS, length, head_dim)

    def forward():
        return scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=True)

    pairs = 0.5 * length * (length + 1) if causal else length * length
    product = 2e-12 * pairs * batch * HEADS * head_dim
    name = f" D={head_dim} T={length} {'causal' if causal else 'full'}"
    with sdpa_kernel(BACK_ENDS[back_end]):
        with torch.no_grad():
            forward_times = measure(forward)
        out = forward()
        backward_times = measure(lambda: torch.autograd.grad(out, (q, k, v), dout, retain_graph=True))
    return [
        line("attention forward" + name, back_end, 2 * product, "TFLOP/s", forward_times),
        line("attention backward" + name, back_end, 5 * product, "TFLOP/s", backward_times),
    ]


def norm_and_rotation(x, gain, cos, sin):
    """x [T, N, D], gain [N, D], cos and sin [T, 1, D/2]; fp32 inside, one rounding."""
    y = x.float()
    y = y * torch.rsqrt(y.square().mean(-1, keepdim=True) + 1e-6) * gain
    first, second = y.chunk(2, -1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), -1).to(x.dtype)


def norm_lines(head_dim):
    qkv = random(TOKENS, HEADS + 2 * KV_HEADS, head_dim)
    heads = HEADS + KV_HEADS
    x = qkv[:, :heads].detach().requires_grad_()  # queries and keys of the packed tensor
    gain = torch.ones(heads, head_dim, device="cuda", requires_grad=True)
    angles = torch.arange(TOKENS, device="cuda")[:, None] / 10000.0 ** (
        torch.arange(0, head_dim, 2, device="cuda") / head_dim)
    cos, sin = angles.cos()[:, None], angles.sin()[:, None]
    dy = random(TOKENS, heads, head_dim)
    compiled = torch.compile(norm_and_rotation, dynamic=False)

    def forward():
        return compiled(x, gain, cos, sin)

    with torch.no_grad():
        forward_times = measure(forward)
    y = forward()
    backward_times = measure(lambda: torch.autograd.grad(y, (x, gain), dy, retain_graph=True))
    gigabytes = 1e-9 * dy.numel() * dy.element_size()
    return [
        line(f"norm+rope forward D={head_dim}", "compiled", 2 * gigabytes, "GB/s", forward_times),
        line(f"norm+rope backward D={head_dim}", "compiled", 3 * gigabytes, "GB/s", backward_times),
    ]


def attempt(lines, function, *arguments):
    """What this PyTorch can't do is left out, with a word on standard error."""
    try:
        lines += function(*arguments)
    except Exception as error:  # pylint: disable=broad-except
        print(f"{function.__name__}{arguments}: {error}".splitlines()[0], file=sys.stderr)
    torch.cuda.empty_cache()


def ratios(ours, theirs):
    """Evenkeel's figures over PyTorch's best of the same name."""
    found = []
    for own in ours:
        same = [line for line in theirs if line["name"] == own["name"]]
        if same:
            best = max(same, key=lambda line: line["value"])
            found.append({"name": own["name"], "unit": own["unit"], "evenkeel": own["value"], "pytorch": best["value"],
                          "by": best["by"], "ratio": own["value"] / best["value"]})
    return found


def main():
    ours = None
    if len(sys.argv) > 1:
        with open(sys.argv[1], encoding="utf-8") as file:
            ours = json.load(file)
    torch.manual_seed(1)
    # Else a compiled backward pass can run once only.
    if hasattr(functorch_config, "donated_buffer"):
        functorch_config.donated_buffer = False
    norm, attention = [], []
    for head_dim in (128, 64):
        attempt(norm, norm_lines, head_dim)
    for head_dim in (128, 64):
        for causal in (False, True):
            for length in (16384, 8192, 4096, 2048):
                for back_end in BACK_ENDS:
                    attempt(attention, attention_lines, back_end, head_dim, length, causal)
    results = {
        "device": {"name": torch.cuda.get_device_name(), "torch": torch.__version__},
        "norm": norm,
        "attention": attention,
    }
    if ours is not None:
        results["ratios"] = ratios(ours.get("norm", []), norm) + ratios(ours.get("attention", []), attention)
        for item in results["ratios"]:
            print(f"{item['name']:42} {item['evenkeel']:8.1f} for PyTorch's {item['pytorch']:8.1f} {item['unit']:7} "
                  f"({item['by']}): {item['ratio']:.2f} times as fast", file=sys.stderr)
    print(json.dumps(results, indent=2))
    return 0 if norm and attention else 1


if __name__ == "__main__":
    sys.exit(main())
