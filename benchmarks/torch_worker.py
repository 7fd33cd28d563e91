"""PyTorch's side, in a process of its own that does what the driver asks for, and nothing in between.

Each line of standard input is a request in JSON, each line of standard output its answer. With RANK, WORLD_SIZE, MASTER_ADDR and
MASTER_PORT it is one of the ranks of a tensor-parallel model, all of which get the same requests.
"""

import ctypes
import gc
import json
import os
import sys
import time
import traceback

import torch

import torch_attention
import torch_model

SUBJECTS = {"attention": torch_attention.Attention, "step": torch_model.Training}


def clock():
    return time.perf_counter()


def resident(field):
    """Bytes: VmRSS, or VmHWM, the peak since the last reset."""
    with open("/proc/self/status", encoding="ascii") as status:
        return next(1024 * int(line.split()[1]) for line in status if line.startswith(field))


def reset_peak():
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    with open("/proc/self/clear_refs", "w", encoding="ascii") as reset:
        reset.write("5")


def times_within(seconds, body, decides):
    """Seconds of each of as many calls as fill that time, one at least."""
    times, left = [], seconds
    while True:
        start = clock()
        body()
        times.append(clock() - start)
        left -= times[-1]
        if decides(left <= 0.0):
            return times


class Worker:
    def __init__(self):
        self.bodies = {}
        self.ranks = int(os.environ.get("WORLD_SIZE", "1"))
        if self.ranks > 1:
            torch.distributed.init_process_group("gloo")

    def decides(self, ends):
        """Rank 0's clock decides for all."""
        if self.ranks == 1:
            return ends
        flag = torch.tensor([int(ends)])
        torch.distributed.broadcast(flag, 0)
        return bool(flag.item())

    def prepare(self, request):
        """Builds one mode and runs it, which compiles it."""
        start = clock()
        body = SUBJECTS[request["subject"]](request["shape"], request["mode"])
        body()
        once = clock()
        body()
        self.bodies[request["name"]] = body
        return {"compiling": once - start, "seconds": clock() - once}

    def drop(self, request):
        del self.bodies[request["name"]]
        gc.collect()
        return {}

    def measure(self, request):
        times = sorted(times_within(request["seconds"], self.bodies[request["name"]], self.decides))
        return {"seconds": times[len(times) // 2], "calls": len(times)}

    def memory(self, request):
        """Growth of resident memory; libraries and compiled code are there before."""
        make = SUBJECTS[request["subject"]]
        small = {**request["shape"], "tokens": 64}
        make(request["shape"] if request["mode"]["compiled"] else small, request["mode"])()
        reset_peak()
        before = resident("VmRSS")
        body = make(request["shape"], request["mode"])
        reset_peak()
        for _ in range(request["calls"]):
            body()
        return {"peak_bytes": resident("VmHWM") - before}

    def attention(self, request):
        """Computes a case from a file's inputs, to be compared."""
        from safetensors.torch import load_file, save_file
        body = torch_attention.Attention(request["shape"], request["mode"], load_file(request["inputs"]))
        values = {name: value.detach().contiguous() for name, value in zip(torch_attention.NAMES, body())}
        save_file(values, request["outputs"])
        return {}

    def inputs(self, request):
        """Random inputs of a case, as the other side reads them."""
        from safetensors.torch import save_file
        torch.manual_seed(1)
        shape = request["shape"]
        query = (shape["batch"], shape["tokens"], shape["heads"], shape["head_dim"])
        key = (shape["batch"], shape["tokens"], shape["kv_heads"], shape["head_dim"])
        save_file({"q": torch.randn(query), "k": 2.0 * torch.randn(key), "v": torch.randn(key),
                   "dout": torch.randn(query), "q_gain": 1.0 + 0.5 * torch.randn(query[2:]),
                   "k_gain": 1.0 + 0.5 * torch.randn(key[2:])}, request["out"])
        return {}

    def differences(self, request):
        """Largest |a - b| of each tensor of two files, relative to the largest |b|."""
        from safetensors.torch import load_file
        a, b = load_file(request["a"]), load_file(request["b"])
        if set(a) != set(b):
            raise ValueError(f"other tensors: {sorted(a)} and {sorted(b)}")
        return {name: ((a[name].float() - b[name].float()).abs().max() / b[name].float().abs().max()).item()
                for name in b}

    def model_folder(self, request):
        return torch_model.write_folder(request["shape"], request["folder"])

    def training(self, request):
        """Logits of a folder's model, and the losses of steps from its weights."""
        return torch_model.train_folder(request["shape"], request["mode"], request["folder"], request["steps"])

    def about(self, _request):
        rates = {}
        for name, dtype in torch_attention.TYPES.items():
            a, b = (torch.randn(1536, 1536).to(dtype) for _ in range(2))
            a @ b
            times = sorted(times_within(0.5, lambda a=a, b=b: a @ b, lambda ends: ends))
            rates[name] = 2e-9 * 1536**3 / times[len(times) // 2]
        return {"version": torch.__version__, "threads": torch.get_num_threads(), "gemm_gflops": rates}


def main():
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever else is printed is no answer
    worker = Worker()
    for line in sys.stdin:
        request = json.loads(line)
        try:
            answer = getattr(worker, request["do"])(request)
        except Exception as error:  # pylint: disable=broad-except
            traceback.print_exc()
            answer = {"error": f"{type(error).__name__}: {error}".splitlines()[0]}
        print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    main()
