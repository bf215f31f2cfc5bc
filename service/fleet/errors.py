"""Errors of the fleet's internal API. Daemons and executors act on the codes."""

from service.http.problems import Conflict, Invalid, NotFound, Unauthorized


class JoinRefused(Unauthorized):
    code, title = "join_refused", "The node may not join"


class ProtocolUnsupported(Conflict):
    """The peer's protocol is more than one version away; one of the two must be upgraded."""

    code, title = "protocol_unsupported", "The versions are too far apart"


class NodeUnknown(Unauthorized):
    """The daemon must end its executors and register again."""

    code, title = "node_unknown", "The node must register again"


class PlacementTokenRefused(Unauthorized):
    code, title = "placement_token_refused", "The placement's token is missing or wrong"


class FenceStale(Conflict):
    """The task has left this placement. The request changed nothing, and neither will later ones."""

    code, title = "fence_stale", "The placement is over"


class SeqGap(Conflict):
    code, title = "seq_gap", "Reports are missing before this one"


class ReportRefused(Invalid):
    code, title = "report_refused", "The report contradicts what is known"


class ObjectUnknown(NotFound):
    code = "object_unknown"


class BaseObjectLost(NotFound):
    """A retry would not help: the executor fails its task in words."""

    code, title = "base_object_lost", "Storage does not hold the base's file"
