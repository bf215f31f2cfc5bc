"""What the fleet's own calls can go wrong with. The codes are what daemons and executors act upon."""

from service.http.problems import Conflict, Invalid, NotFound, Unauthorized


class JoinRefused(Unauthorized):
    code, title = "join_refused", "The node may not join"


class ProtocolUnsupported(Conflict):
    """The peer is more than one version of the protocol away; one of the two has to be upgraded."""

    code, title = "protocol_unsupported", "The versions are too far apart"


class NodeUnknown(Unauthorized):
    """The daemon ends its executors and registers anew."""

    code, title = "node_unknown", "The node must register again"


class PlacementTokenRefused(Unauthorized):
    code, title = "placement_token_refused", "The placement's token is missing or wrong"


class FenceStale(Conflict):
    """The task has left this placement. Nothing was changed, and nothing it says will change anything."""

    code, title = "fence_stale", "The placement is over"


class SeqGap(Conflict):
    code, title = "seq_gap", "Reports are missing before this one"


class ReportRefused(Invalid):
    code, title = "report_refused", "The report contradicts what is known"


class ObjectUnknown(NotFound):
    code = "object_unknown"
