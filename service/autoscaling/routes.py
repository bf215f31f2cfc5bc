"""HTTP route for admins: what the autoscaling webhook is told, for those who would rather ask."""

from fastapi import APIRouter

from service.app_state import Config
from service.authentication import AdminDb
from service.autoscaling.fleet_needs import autoscaling_state
from service.autoscaling.resource import AutoscalingState
from service.http.response_schemas import problems

router = APIRouter(prefix="/v1", responses=problems(401, 403))


@router.get(
    "/admin/autoscaling",
    operation_id="get_autoscaling",
    summary="GPUs that the queue asks for beyond what is free, and nodes that are idle",
    description="The state that is posted to MOTET_AUTOSCALING_URL, where an operator has set it, whenever it has changed.",
    tags=["admin"],
)
def get_autoscaling(admin: AdminDb, settings: Config) -> AutoscalingState:
    with admin.begin() as session:
        return autoscaling_state(session, settings)
