"""Results as Markdown."""


def milliseconds(seconds):
    value = 1e3 * seconds
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def mark(ratio, goal, at_most=False):
    if goal is None:
        return ""
    met = ratio <= goal if at_most else ratio >= goal
    return f"{'at most ' if at_most else ''}{goal}: {'yes' if met else '**no**'}"


def speed_rows(cases):
    lines = ["| case | Evenkeel | ms | fastest of PyTorch | ms | times as fast | goal |",
             "| --- | --- | --- | --- | --- | --- | --- |"]
    for case in cases:
        for row in case["rows"]:
            lines.append(
                f"| {case['name']} | {row['ours']} | {milliseconds(row['seconds'])} | {row['best']} | "
                f"{milliseconds(row['torch_seconds'])} | {row['median']:.2f} [{row['low']:.2f} to {row['high']:.2f}] | "
                f"{mark(row['median'], row['goal'])} |")
    return lines


def memory_rows(cases):
    lines = ["| case | Evenkeel | MiB | least of PyTorch | MiB | of PyTorch's | goal |",
             "| --- | --- | --- | --- | --- | --- | --- |"]
    for case in cases:
        for row in case["rows"]:
            memory = row.get("memory")
            if memory:
                lines.append(
                    f"| {case['name']} | {row['ours']} | {memory['bytes'] / 2**20:.1f} | {memory['best']} | "
                    f"{memory['torch_bytes'] / 2**20:.1f} | {memory['ratio']:.2f} | "
                    f"{mark(memory['ratio'], memory['goal'], True)} |")
    return lines if len(lines) > 2 else []


def mode_rows(cases):
    """All modes of PyTorch, for who asks what another one takes."""
    lines = ["| case | mode of PyTorch | ms | MiB |", "| --- | --- | --- | --- |"]
    for case in cases:
        for name, seconds in case["torch"].items():
            middle = sorted(seconds)[len(seconds) // 2]
            peak = case.get("torch_peaks", {}).get(name)
            lines.append(f"| {case['name']} | {name} | {milliseconds(middle)} | "
                         f"{'' if peak is None else f'{peak / 2**20:.1f}'} |")
        for name, reason in case["failed"].items():
            lines.append(f"| {case['name']} | {name} | {reason[:100]} | |")
    return lines


def markdown(results):
    machine = results["machine"]
    gemm = ", ".join(f"{name} {rate:.0f}" for name, rate in machine["gemm_gflops"].items())
    lines = [f"{machine['processor']}, {machine['threads']} threads; PyTorch {machine['version']}, whose product of "
             f"1536 x 1536 matrices runs at {gemm} GFLOP/s; {machine['evenkeel']}.", "",
             "Agreement before timing: " + ", ".join(
                 f"{check['name']} {check['difference']:.1e}" for check in results["checks"]
                 if "fp32" in check["name"] and (" out" in check["name"] or "attention" not in check["name"])) + ".", ""]
    titles = {"attention": "Norm, rotation and attention", "step": "Training step, one process",
              "parallel": "Training step, two tensor-parallel ranks of one thread"}
    for part, title in titles.items():
        cases = [case for case in results["cases"].values() if case["part"] == part]
        if cases:
            lines += [f"## {title}", "", *speed_rows(cases), "", *memory_rows(cases), ""]
    lines += ["## Every mode of PyTorch", "", *mode_rows(results["cases"].values()), ""]
    return "\n".join(lines)
