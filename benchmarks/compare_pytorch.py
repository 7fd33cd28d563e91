#!/usr/bin/env python3
"""Evenkeel against PyTorch: benchmarks/compare_pytorch.sh starts it and has the instructions.

First both compute the same inputs and must agree. Then each case is measured in turn, and its peak of memory on either side
in a process of its own. Results are kept after each case in DIR/results.json; a run that was broken off goes on there.
"""

import argparse
import json
import os
import platform
import sys
import time

import checks
import pairs
from pairs import Failure, Torch, evenkeel, measure, ratio
from table import markdown

TYPES = ("bf16", "fp32")
MEMORY_CALLS = 6  # until what either side keeps grows no more


def attention_cases(quick):
    """T, D, and MHA or GQA; heads as many as keep a case short."""
    shapes = []
    for tokens, batch, width in ((512, 4, 512), (1024, 2, 512), (2048, 1, 512), (4096, 1, 256), (8192, 1, 256)):
        for head_dim in (64, 128):
            heads = width // head_dim
            for kv_heads in (heads, max(1, heads // 4)):
                shapes.append({"batch": batch, "tokens": tokens, "heads": heads, "kv_heads": kv_heads,
                               "head_dim": head_dim})
    if quick:
        shapes = [shape for shape in shapes if shape["tokens"] == 2048 and shape["head_dim"] == 64][1:]
    for shape in shapes:
        yield attention_case(shape, quick)


def attention_case(shape, quick):
    options = []
    for key, value in shape.items():
        options += ["--" + key.replace("_", "-"), value]
    modes, ours, rows = {}, {}, []
    for backward in (True,) if quick else (False, True):
        what = "forward+backward" if backward else "forward"
        for kind in TYPES:
            for compiled in (False, True):
                modes[f"{what} {kind} {'compiled' if compiled else 'eager'}"] = {
                    "type": kind, "compiled": compiled, "backward": backward}
            ours[f"{what} {kind}"] = ["bench", "attention", *options, "--type", kind,
                                      *([] if backward else ["--forward"])]
            # What is at least as exact: fp32 in place of bf16, not the other way round.
            exact = TYPES if kind == "bf16" else ("fp32",)
            rows.append({"ours": f"{what} {kind}",
                         "among": [f"{what} {k} {c}" for k in exact for c in ("eager", "compiled")],
                         "goal": 2.0 if backward and shape["tokens"] >= 2048 else None})
    heads = f"{shape['heads']}/{shape['kv_heads']} heads"
    name = f"T={shape['tokens']} D={shape['head_dim']} B={shape['batch']}, {heads}"
    weight = {512: 60, 1024: 60, 2048: 70, 4096: 70, 8192: 130}[shape["tokens"]]  # seconds
    # One shape a length: what is held depends little on the rest.
    has_memory = shape["tokens"] in (2048, 8192) and shape["head_dim"] == 64 and shape["kv_heads"] < shape["heads"]
    return {"part": "attention", "name": name, "subject": "attention", "shape": shape, "modes": modes, "ours": ours,
            "ranks": 1, "rows": rows, "seconds": 0.3, "rounds": 3 if quick else 5, "budget": weight * 0.6,
            "expected": weight, "memory": has_memory and not quick}


STEPS = (
    {"width": 512, "layers": 4, "heads": 8, "kv_heads": 4, "head_dim": 64, "feed_forward": 1408, "vocab": 256,
     "tokens": 1024, "batch": 2},
    {"width": 512, "layers": 4, "heads": 8, "kv_heads": 2, "head_dim": 64, "feed_forward": 1408, "vocab": 8192,
     "tokens": 4096, "batch": 1},
)


def step_case(shape, ranks, out, quick):
    modes, ours, rows = {}, {}, []
    # Mixed precision in two ways; neither is what fp32 computes.
    kinds = {"bf16": ("autocast", "fp32") if quick else ("autocast", "masters", "fp32"), "fp32": ("fp32",)}
    for kind in kinds["bf16"]:
        for compiled in (False,) if quick and ranks > 1 else (False, True):
            modes[f"{kind} {'compiled' if compiled else 'eager'}"] = {"type": kind, "compiled": compiled}
    name = f"C={shape['width']} L={shape['layers']} V={shape['vocab']} T={shape['tokens']} B={shape['batch']}"
    for kind in TYPES:
        file = os.path.join(out, f"step_{shape['tokens']}_{kind}_{ranks}.json")
        checks.write_config(file, shape, kind, ranks)
        # torch.compile chooses by itself what it makes again in backward.
        for again in ("none", "elementwise", "full") if ranks == 1 else ("none",):
            mode = kind if again == "none" else f"{kind}, recompute {again}"
            ours[mode] = ["bench", "step", "--config", file, "--set", f"model.recompute={again}"]
            rows.append({"ours": mode, "among": [f"{k} {c}" for k in kinds[kind] for c in ("eager", "compiled")],
                         "goal": 1.5})
    weight = (200 if shape["tokens"] < 2048 else 300) // (2 if quick else 1)
    return {"part": "step" if ranks == 1 else "parallel", "name": name, "subject": "step", "shape": shape,
            "modes": modes, "ours": ours, "ranks": ranks, "rows": rows, "seconds": 0.5, "rounds": 3 if quick else 7,
            "budget": weight * 0.4, "expected": weight, "memory": ranks == 1 and not quick}


def cases_of(arguments):
    parts = arguments.only or ["attention", "step", "parallel"]
    cases = []
    if "attention" in parts:
        cases += attention_cases(arguments.quick)
    for part, ranks in (("step", 1), ("parallel", 2)):
        if part in parts:
            cases += [step_case(shape, ranks, arguments.out, arguments.quick)
                      for shape in (STEPS[:1] if arguments.quick or ranks > 1 else STEPS)]
    return [case for case in cases if arguments.match in case["name"]]


def measure_memory(case, out, say):
    """Peak of PyTorch's modes with a backward pass, each in a process of its own."""
    peaks = {}
    for name, mode in case["modes"].items():
        if not mode.get("backward", True):
            continue
        try:
            with Torch(out, case["ranks"]) as torch:
                peaks[name] = torch.ask("memory", subject=case["subject"], shape=case["shape"],
                                        mode=mode, calls=MEMORY_CALLS)["peak_bytes"]
        except Failure as failure:
            say(f"memory of PyTorch {name}: {failure}")
    return peaks


def run_case(case, out, say):
    with Torch(out, case["ranks"], pairs.KEEP_MEMORY) as torch:
        result = measure(torch, case, case["budget"], say)
    result["rows"] = [{**row, **ratio(result, row["ours"], row["among"])} for row in case["rows"]]
    if case["memory"]:
        result["torch_peaks"] = measure_memory(case, out, say)
        calls = ["--steps" if case["subject"] == "step" else "--calls", MEMORY_CALLS - 1]  # and one that warms up
        result["our_peaks"] = {
            name: evenkeel([*arguments, *calls, "--json"], case["ranks"])["peak_bytes"]
            for name, arguments in case["ours"].items()}
        for row in result["rows"]:
            theirs = {name: result["torch_peaks"][name] for name in row["among"] if name in result["torch_peaks"]}
            if theirs:
                least = min(theirs, key=theirs.get)
                own = result["our_peaks"][row["ours"]]
                row["memory"] = {"best": least, "torch_bytes": theirs[least], "bytes": own,
                                 "ratio": own / theirs[least], "goal": 0.7}
    return {**{key: case[key] for key in ("part", "name", "shape", "ranks")}, **result}


class Progress:
    def __init__(self, cases):
        self.cases, self.start, self.done = cases, time.monotonic(), 0.0
        self.total = sum(case["expected"] for case in cases)

    def say(self, text):
        spent = time.monotonic() - self.start
        pace = spent / self.done if self.done > 0 else 1.0
        left = max(0.0, self.total * pace - spent)
        print(f"[{spent / 60:5.1f} min, left {left / 60:4.1f}] {text}", file=sys.stderr, flush=True)


def processor():
    with open("/proc/cpuinfo", encoding="utf-8") as info:
        lines = [line.split(":", 1) for line in info if ":" in line]
    fields = {key.strip(): value.strip() for key, value in lines}
    flags = fields.get("flags", "").split()
    kinds = [flag for flag in ("avx2", "avx512f", "avx512_bf16", "amx_bf16") if flag in flags]
    return f"{fields.get('model name', platform.machine())} ({', '.join(kinds)})"


def main():
    parser = argparse.ArgumentParser(prog="compare_pytorch.sh", description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="one shape of each part and fewer modes, two to three minutes")
    parser.add_argument("--only", action="append", choices=("attention", "step", "parallel"), help="this part (repeatable)")
    parser.add_argument("--match", default="", metavar="TEXT", help="cases whose names have this, such as T=8192")
    parser.add_argument("--out", default="runs/compare_pytorch", help="where results go (default %(default)s)")
    parser.add_argument("--fresh", action="store_true", help="measure anew what DIR has already")
    arguments = parser.parse_args()
    arguments.out = os.path.abspath(arguments.out)
    os.makedirs(arguments.out, exist_ok=True)
    file = os.path.join(arguments.out, "results.json")
    cases = cases_of(arguments)
    progress = Progress(cases)
    results = {"cases": {}}
    if os.path.exists(file) and not arguments.fresh:
        with open(file, encoding="utf-8") as text:
            results = json.load(text)
    try:
        with Torch(arguments.out) as torch:
            results["machine"] = {"processor": processor(), "threads": pairs.threads(), **torch.ask("about"),
                                  "evenkeel": evenkeel(["--version"]).strip()}
            progress.say("do both compute the same?")
            results["checks"] = checks.attention(torch, arguments.out) + checks.training(torch, arguments.out)
        if any(case["part"] == "parallel" for case in cases):
            results["checks"] += checks.parallel(arguments.out)
        for case in cases:
            key = f"{case['part']} {case['name']}" + (" quick" if arguments.quick else "")
            if key not in results["cases"]:
                progress.say(f"{case['part']}: {case['name']}")
                results["cases"][key] = run_case(case, arguments.out, progress.say)
                progress.done += case["expected"]
                for row in results["cases"][key]["rows"]:
                    progress.say(f"  {row['ours']}: {row['median']:.2f} times as fast as PyTorch {row['best']}")
            else:
                progress.total -= case["expected"]
            with open(file + ".new", "w", encoding="utf-8") as text:
                json.dump(results, text, indent=1)
            os.replace(file + ".new", file)
    except Failure as failure:
        print(f"compare_pytorch: {failure}", file=sys.stderr)
        return 1
    text = markdown(results)
    with open(os.path.join(arguments.out, "results.md"), "w", encoding="utf-8") as page:
        page.write(text)
    print(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
