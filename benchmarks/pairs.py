"""Two programs measured in turn: PyTorch in a process that waits while Evenkeel runs, and Evenkeel in a new one each time."""

import json
import os
import shutil
import socket
import statistics
import subprocess
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
EVENKEEL = os.environ.get("EVENKEEL", os.path.join(HERE, "..", "build", "evenkeel"))
# What Evenkeel asks of the C library for itself: freed memory is kept. It makes PyTorch's steps some percent faster too.
KEEP_MEMORY = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": str(2**31 - 1)}
DROP = 1.5  # a mode of PyTorch that takes so much longer than the fastest of every row it stands in is measured in one round only


class Failure(Exception):
    pass


def threads():
    return int(os.environ.get("OMP_NUM_THREADS") or len(os.sched_getaffinity(0)))


def environment(ranks, **more):
    env = dict(os.environ, OMP_NUM_THREADS=str(max(1, threads() // ranks)), **more)
    if os.geteuid() == 0:
        env.update(OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1")
    return env


def evenkeel(arguments, ranks=1):
    """Runs the program; its output as JSON, or as text where it is none."""
    command = [EVENKEEL, *map(str, arguments)]
    if ranks > 1:
        command = [shutil.which("mpirun") or "mpirun", "-np", str(ranks), "--bind-to", "none", *command]
    done = subprocess.run(command, env=environment(ranks), capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise Failure(f"{' '.join(command)}: exit status {done.returncode}\n{done.stderr[-2000:]}")
    try:
        return json.loads(done.stdout)
    except json.JSONDecodeError:
        return done.stdout


class Torch:
    """PyTorch on one rank, or on some that get the same requests."""

    def __init__(self, out, ranks=1, settings=None):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        self.log = open(os.path.join(out, "pytorch.log"), "a", encoding="utf-8")  # pylint: disable=consider-using-with
        self.processes = []
        for rank in range(ranks):
            more = {"TORCHINDUCTOR_CACHE_DIR": os.path.join(out, "inductor"), **(settings or {})}
            if ranks > 1:
                more.update(RANK=str(rank), WORLD_SIZE=str(ranks), MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port),
                            GLOO_SOCKET_IFNAME="lo")
            self.processes.append(subprocess.Popen(  # pylint: disable=consider-using-with
                [sys.executable, os.path.join(HERE, "torch_worker.py")], env=environment(ranks, **more),
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.log, text=True))

    def ask(self, do, **request):
        """The answer of rank 0; of memory the largest."""
        for process in self.processes:
            process.stdin.write(json.dumps({"do": do, **request}) + "\n")
            process.stdin.flush()
        answers = [process.stdout.readline() for process in self.processes]
        if not all(answers):
            raise Failure(f"PyTorch's process has ended: see {self.log.name}")
        answers = [json.loads(answer) for answer in answers]
        for answer in answers:
            if "error" in answer:
                raise Failure(answer["error"])
        if "peak_bytes" in answers[0]:
            return max(answers, key=lambda answer: answer["peak_bytes"])
        return answers[0]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for process in self.processes:
            process.stdin.close()
        for process in self.processes:
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
        self.log.close()


def quartiles(values):
    """Median and the middle half."""
    values = sorted(values)
    if len(values) == 1:
        return {"median": values[0], "low": values[0], "high": values[0]}
    low, middle, high = statistics.quantiles(values, n=4, method="inclusive")
    return {"median": middle, "low": low, "high": high}


def measure(torch, case, budget, say):
    """case: {"subject", "shape", "modes": {NAME: mode}, "ours": {NAME: arguments}, "rows", "ranks", "seconds", "rounds"}.

    Seconds of a call in each round, of each side's modes; what PyTorch can't do is under "failed".
    """
    times, failed, ours = {}, {}, {name: [] for name in case["ours"]}
    for name, mode in case["modes"].items():
        try:
            ready = torch.ask("prepare", subject=case["subject"], shape=case["shape"], mode=mode, name=name)
            say(f"PyTorch {name}: ready after {ready['compiling']:.0f} s")
            times[name] = []
        except Failure as failure:
            failed[name] = str(failure)
            say(f"PyTorch {name}: {failure}")
            if "has ended" in str(failure):
                raise
    end = time.monotonic() + budget
    groups = {}
    for name in times:
        groups.setdefault(case["modes"][name].get("backward"), []).append(name)
    for done in range(case["rounds"]):
        if done >= 3 and time.monotonic() > end:
            break
        for name in [name for group in groups.values() for name in group]:
            times[name].append(torch.ask("measure", name=name, seconds=case["seconds"])["seconds"])
        for name, arguments in case["ours"].items():
            result = evenkeel([*arguments, "--seconds", case["seconds"], "--json"], case["ranks"])
            ours[name].append(result["seconds"])
        if done > 0:
            continue
        kept = set()
        for row in case["rows"]:
            among = [name for name in row["among"] if name in times]
            fastest = min((times[name][0] for name in among), default=0.0)
            kept.update(name for name in among if times[name][0] <= DROP * fastest)
        for key, group in groups.items():
            groups[key] = [name for name in group if name in kept]
            for name in set(group) - kept:
                torch.ask("drop", name=name)
    return {"torch": times, "ours": ours, "failed": failed}


def ratio(result, ours, candidates):
    """Evenkeel's mode against PyTorch's fastest one of the candidates: how much longer that takes, round by round."""
    medians = {name: statistics.median(result["torch"][name]) for name in candidates if result["torch"].get(name)}
    if not medians:
        raise Failure(f"{ours}: no mode of PyTorch has run: {result['failed']}")
    full = {name: value for name, value in medians.items() if len(result["torch"][name]) == len(result["ours"][ours])}
    best = min(full or medians, key=medians.get)
    pairs = zip(result["torch"][best], result["ours"][ours])
    return {"best": best, "torch_seconds": medians[best], "seconds": statistics.median(result["ours"][ours]),
            "rounds": len(result["torch"][best]), **quartiles([theirs / own for theirs, own in pairs])}
