"""A plan in words and in a table: what was chosen, what it is predicted to take, and what was passed over and why."""

from __future__ import annotations

from scheduler.planning.schedule import Plan, Rejected

SHOWN = 3  # rejected plans named beside the chosen one


def explained(plan: Plan, shown: int = SHOWN) -> str:
    """A few lines: the chosen plan and the best rejected ones, each with its reason."""
    lines = [f"plan: {plan.mode}: {plan.reason}"]
    if plan.predicted is not None:
        lines.append(f"  predicted {seconds(plan.predicted.iteration_s)} an iteration; {bottleneck(plan)}")
    lines += [f"  not {each.mode}: {each.summary}: {each.reason}" for each in plan.rejected[:shown]]
    return "\n".join(lines)


def bottleneck(plan: Plan) -> str:
    """One sentence: which stage is busy longest, and for which share of the iteration."""
    predicted = plan.predicted
    if predicted is None or not predicted.by_stage:
        return "no bottleneck is known before something was measured"
    longest = max(predicted.by_stage, key=predicted.by_stage.__getitem__)
    share = 100 * predicted.by_stage[longest] / predicted.iteration_s if predicted.iteration_s else 0.0
    return f"the bottleneck is {longest}, busy {seconds(predicted.by_stage[longest])}, {share:.0f} % of it"


def stage_table(plan: Plan) -> str:
    """Stage by stage: where, with what, how many items at a time, predicted seconds."""
    busy = plan.predicted.by_stage if plan.predicted else {}
    rows = [("stage", "devices", "processes", "threads", "granule", "busy")]
    for name, stage in plan.stages.items():
        rows.append((name, devices(stage.devices), str(stage.processes or "own"), str(stage.threads), str(stage.granule or "round"), seconds(busy[name]) if name in busy else "?"))
    return _table(rows)


def plan_table(plan: Plan) -> str:
    """The chosen plan first, then every rejected one."""
    rows = [("", "mode", "iteration", "idle", "plan", "why not")]
    idle = ", ".join(f"{pool} {100 * share:.0f} %" for pool, share in plan.predicted.idle.items()) if plan.predicted else ""
    rows.append(("*", plan.mode, seconds(plan.predicted.iteration_s) if plan.predicted else "?", idle, plan.reason, ""))
    rows += [("", each.mode, _took(each), "", each.summary, each.reason) for each in plan.rejected]
    return _table(rows)


def memory_lines(plan: Plan) -> str:
    """Peak bytes by device, those alike in one line."""
    if plan.predicted is None or not plan.predicted.memory:
        return ""
    alike: dict[int, list[str]] = {}
    for device, peak in plan.predicted.memory.items():
        if not peak:
            continue  # nothing was measured
        alike.setdefault(peak, []).append(device)
    return "\n".join(f"peak memory {peak / 2**30:.1f} GiB: {devices(tuple(names))}" for peak, names in alike.items())


def devices(names: tuple[str, ...]) -> str:
    """"cores" for none; many by the first and the last."""
    if not names:
        return "cores"
    return ", ".join(names) if len(names) <= 2 else f"{names[0]} .. {names[-1]} ({len(names)})"


def seconds(value: float) -> str:
    """Three significant digits with a unit."""
    if value >= 100:
        return f"{value:.0f} s"
    return f"{value:.3g} s" if value >= 1 else f"{1e3 * value:.3g} ms"


def _took(each: Rejected) -> str:
    return "cannot run" if each.iteration_s is None else seconds(each.iteration_s)


def _table(rows: list[tuple[str, ...]]) -> str:
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]) - 1)]
    return "\n".join("  ".join([*(cell.ljust(width) for cell, width in zip(row, widths)), row[-1]]).rstrip() for row in rows)
