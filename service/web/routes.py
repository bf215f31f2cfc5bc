"""All pages' routers. A page of a fixed path comes before the one of a task with any id."""

from service.web import static_files
from service.web.pages import (
    admin_pages,
    cluster_page,
    compare,
    keys,
    library,
    members_page,
    merged_models,
    new_task,
    reference_page,
    task_list,
    task_page,
    tracking_servers_page,
    usage,
    webhooks,
)
from service.web.session import provider_sign_in, sign_in

ROUTERS = (
    static_files.router,
    sign_in.router,
    provider_sign_in.router,
    task_list.router,
    new_task.router,
    task_page.router,
    compare.router,
    cluster_page.router,
    library.router,
    merged_models.router,
    usage.router,
    keys.router,
    members_page.router,
    webhooks.router,
    tracking_servers_page.router,
    admin_pages.router,
    reference_page.router,
)
