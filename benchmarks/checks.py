"""That both programs compute the same, before anything is timed: a difference beyond rounding ends the run."""

import json
import os

from pairs import Failure, Torch, evenkeel
from settings import OPTIMIZER, model_settings

SMALL = {"width": 128, "layers": 2, "heads": 4, "kv_heads": 2, "head_dim": 32, "feed_forward": 352, "vocab": 320,
         "tokens": 96, "batch": 2}
STEPS = 6
FP32 = 1e-4  # of the largest value of a tensor, or of a loss


def write_config(path, shape, kind, ranks, init_from=""):
    """A run of that model, as `evenkeel bench step` takes it."""
    config = {
        "model": {**model_settings(shape), "type": kind},
        "trainer": {"seq_len": shape["tokens"], "batch_size": shape["batch"], "micro_batch_size": shape["batch"],
                    "clip_norm": OPTIMIZER["clip"], "init_from": init_from},
        "schedule": {"peak_lr": OPTIMIZER["rate"]},
        "optimizer": {"beta1": OPTIMIZER["betas"][0], "beta2": OPTIMIZER["betas"][1],
                      "epsilon": OPTIMIZER["epsilon"], "weight_decay": OPTIMIZER["decay"]},
        "parallel": {"tensor_parallel": ranks}}
    with open(path, "w", encoding="utf-8") as file:
        json.dump(config, file, indent=2)


def agree(name, difference, limit):
    if not difference <= limit:
        raise Failure(f"{name}: Evenkeel and PyTorch differ by {difference:.2g}, at most {limit:.2g} was expected")
    return {"name": name, "difference": difference, "limit": limit}


def attention(torch, out):
    """Outputs and all gradients of random inputs with random gains, against PyTorch in fp32."""
    found = []
    file = os.path.join(out, "attention_{}.safetensors").format
    for head_dim, heads, kv_heads in ((64, 4, 4), (128, 4, 1)):
        shape = {"batch": 2, "tokens": 160, "heads": heads, "kv_heads": kv_heads, "head_dim": head_dim}
        torch.ask("inputs", shape=shape, out=file("inputs"))
        options = [word for key, value in shape.items() for word in ("--" + key.replace("_", "-"), value)]
        for kind in ("fp32", "bf16"):
            mode = {"type": kind, "compiled": False, "backward": True}
            torch.ask("attention", shape=shape, mode=mode, inputs=file("inputs"), outputs=file("torch_" + kind))
            evenkeel(["bench", "attention", *options, "--type", kind, "--seconds", 0, "--inputs", file("inputs"),
                      "--outputs", file("ours_" + kind), "--json"])
            ours = torch.ask("differences", a=file("ours_" + kind), b=file("torch_fp32"))
            theirs = torch.ask("differences", a=file("torch_" + kind), b=file("torch_fp32"))
            for name, difference in ours.items():
                limit = FP32 if kind == "fp32" else 2.0 * theirs[name] + 1e-3
                found.append(agree(f"attention D={head_dim} {heads}/{kv_heads} {kind} {name}", difference, limit))
    return found


def losses(out, kind, ranks):
    config = os.path.join(out, f"check_{kind}_{ranks}.json")
    folder = os.path.join(out, "check_model")
    write_config(config, SMALL, kind, ranks, folder)
    result = evenkeel(["bench", "step", "--config", config, "--tokens", folder + "_batch.safetensors",
                       "--steps", STEPS - 1, "--json"], ranks)
    return result["losses"]  # that of the step that warms up is the first


def largest(ours, theirs):
    return max(abs(a - b) / abs(b) for a, b in zip(ours, theirs))


def training(torch, out):
    """Logits of one model, and the losses of steps from it, in fp32."""
    folder = os.path.join(out, "check_model")
    torch.ask("model_folder", shape=SMALL, folder=folder)
    theirs = torch.ask("training", shape=SMALL, mode={"type": "fp32", "compiled": False}, folder=folder, steps=STEPS)
    evenkeel(["eval", folder, "--tokens", folder + "_tokens.safetensors", "--logits",
              folder + "_logits.safetensors"])
    logits = torch.ask("differences", a=folder + "_logits.safetensors", b=folder + "_logits_torch.safetensors")
    return [agree("logits fp32", logits["logits"], FP32),
            agree(f"losses of {STEPS} steps fp32", largest(losses(out, "fp32", 1), theirs["losses"]), FP32)]


def parallel(out):
    """Losses of two ranks' steps."""
    with Torch(out, 2) as torch:
        theirs = torch.ask("training", shape=SMALL, mode={"type": "fp32", "compiled": False},
                           folder=os.path.join(out, "check_model"), steps=STEPS)
    ours = losses(out, "fp32", 2)
    return [agree(f"losses of {STEPS} steps fp32 of two ranks", largest(ours, theirs["losses"]), FP32)]
