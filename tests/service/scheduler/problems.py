"""Random scheduling problems for hypothesis: small ones of every kind that the planner may meet."""

from dataclasses import replace

from hypothesis import strategies as st

from service.scheduler.core.problem import Limit, PlanNode, Queued, RunningExecutor, SchedulingProblem, Width

TENANTS = ("", "ada", "bo")


@st.composite
def problems(draw: st.DrawFn, *, closed: bool = False) -> SchedulingProblem:
    """Up to 5 nodes (types by duration and worth, drains), running tasks that fit, up to 12 queued ones, widths (of some, the
    narrowest by node), limits, deadlines."""
    nodes = tuple(
        PlanNode(
            f"n{at}",
            draw(st.sampled_from((1, 2, 4, 6, 8))),
            draw(st.integers(0, 9)) == 0,
            draw(st.sampled_from((1, 0.4, 4e-5))),
        )
        for at in range(draw(st.integers(1, 5)))
    )
    running = []
    for node in nodes:
        free = node.gpus
        while free and draw(st.booleans()):
            gpus = draw(st.integers(1, free))
            running.append(
                RunningExecutor(f"r{len(running)}", node.id, gpus, draw(st.integers(1, 50)), draw(st.sampled_from(TENANTS)))
            )
            free -= gpus
    slower = tuple(draw(st.sampled_from((1, 2))) for _ in nodes)
    queued = tuple(draw(_queued(f"q{at}", nodes, slower)) for at in range(draw(st.integers(0, 12))))
    limits = tuple(Limit(name, draw(st.integers(0, 12))) for name in TENANTS[1:] if draw(st.booleans()))
    return SchedulingProblem(nodes, tuple(running), queued, limits, closed)


@st.composite
def _queued(draw: st.DrawFn, name: str, nodes: tuple[PlanNode, ...], slower: tuple[int, ...]) -> Queued:
    gpus, seconds = draw(st.sampled_from((1, 2, 3, 4, 8))), draw(st.integers(1, 60))
    roomy = draw(st.integers(0, 4)) != 0  # else its memory fits only every other node
    least = [gpus << draw(st.integers(0, 2)) for _ in nodes] if draw(st.integers(0, 3)) == 0 else [gpus] * len(nodes)
    least[draw(st.integers(0, len(nodes) - 1))] = gpus
    needs = tuple(least) if len(set(least)) > 1 else ()
    fits = [node.gpus >= need and (roomy or at % 2 == 0) for at, (node, need) in enumerate(zip(nodes, least, strict=True))]
    widths = [Width(gpus, tuple(seconds * slow if fit else None for fit, slow in zip(fits, slower, strict=True)), needs)]
    for wide in range(1, draw(st.integers(1, 3))):
        here = gpus << wide
        wider = [fit and need < here <= node.gpus for fit, need, node in zip(fits, least, nodes, strict=True)]
        spent = max(1, seconds * 10 // (7 << wide))
        widths.append(Width(here, tuple(spent * slow if fit else None for fit, slow in zip(wider, slower, strict=True))))
    return Queued(
        id=name,
        gpus=gpus,
        weight=draw(st.integers(1, 5)),
        seconds=widths[0].seconds,
        planned=draw(st.sampled_from((None, *(node.id for node in nodes)))),
        tenant=draw(st.sampled_from(TENANTS)),
        deadline=draw(st.sampled_from((None, None, -5, 40, 200))),
        wider=tuple(widths[1:]),
        needs=needs,
    )


def with_node(problem: SchedulingProblem, gpus: int = 8) -> SchedulingProblem:
    """The same problem with one more idle node, on which everything takes as long as where it is fastest."""

    def more(width: Width) -> Width:
        fastest = min((s for s in width.seconds if s is not None), default=None)
        needs = (*width.needs, width.gpus) if width.needs else ()
        return Width(width.gpus, (*width.seconds, fastest if width.gpus <= gpus else None), needs)

    queued = tuple(
        replace(
            task,
            seconds=more(task.widths[0]).seconds,
            needs=more(task.widths[0]).needs,
            wider=tuple(more(width) for width in task.wider),
        )
        for task in problem.queued
    )
    return replace(problem, nodes=(*problem.nodes, PlanNode("extra", gpus)), queued=queued)
