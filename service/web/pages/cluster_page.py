"""The cluster: what ran, runs and is planned on which GPU, the queue and its reasons, and the nodes, for admins to change."""

from dataclasses import replace
from typing import Literal

from fastapi import Request, Response
from fastapi.responses import RedirectResponse

from service.app_state import DependenciesDep, State, state_of
from service.authentication import AdminDb
from service.database.engine import clock
from service.fleet import admin_routes
from service.fleet.node_health import node_drain, node_removal
from service.http.pagination import MAX_LIMIT
from service.scheduler.explain.schedule_view import Schedule, schedule
from service.web.forms import Form
from service.web.page_route import pages
from service.web.rendering import render
from service.web.session.viewer import Looking
from service.web.views.timeline.cluster_lanes import AXIS, LEFT, WIDTH, timeline

router = pages()

_MOST_PAGES = 20


@router.get("/cluster")
def show_cluster(viewer: Looking, dependencies: DependenciesDep, request: Request) -> Response:
    named = None if viewer.is_admin else viewer.principal.tenant_id
    with dependencies.db.begin() as session:
        found = schedule(session, dependencies.settings, named, None, MAX_LIMIT)
        for _ in range(_MOST_PAGES):
            if found.next_cursor is None:
                break
            found = _joined(found, schedule(session, dependencies.settings, named, found.next_cursor, MAX_LIMIT))
        drawn = timeline(session, named, found.waiting, clock(session))
    return render(
        request,
        "cluster.html",
        schedule=found,
        drawn=drawn,
        width=WIDTH,
        left=LEFT,
        axis=AXIS,
        nodes=_nodes(state_of(request), dependencies) if viewer.is_admin else None,
    )


def _joined(one: Schedule, next_: Schedule) -> Schedule:
    rows = {"nodes": one.nodes + next_.nodes, "waiting": one.waiting + next_.waiting, "next_cursor": next_.next_cursor}
    return one.model_copy(update=rows)


def _nodes(state: State, dependencies: DependenciesDep) -> list[admin_routes.NodeResource]:
    return admin_routes.list_nodes(state.system.for_tenant(None), dependencies).data


@router.post("/cluster/nodes/{node_id}/{act}")
def change_node(
    node_id: str, act: Literal["drain", "undrain", "remove"], db: AdminDb, dependencies: DependenciesDep, form: Form
) -> Response:
    dependencies = replace(dependencies, db=db)
    match act:
        case "drain":
            node_drain.drain(dependencies, node_id, evict=form.one("evict") == "1")
        case "undrain":
            node_drain.undrain(dependencies, node_id)
        case "remove":
            node_removal.remove(dependencies, node_id)
    return RedirectResponse("/cluster", 303)
