"""On how many GPUs a base fits, in words for a task's owner. Values only."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from contract.gpu_counts import gpu_count
from service.scheduler.estimate.base_fit import BaseFit
from service.scheduler.estimate.node_shapes import Shape


@dataclass(frozen=True)
class FitWords:
    """What is to be said of a waiting task's width.

    needed: `1 x NVIDIA H200 or 2 x NVIDIA L4`; empty where its base fits on as many as it asks for. why: the sentence after
    these. as_asked: the GPUs that it asks for, where some type of `needed` takes no more; else 0. unfit: why no node has room
    for its base, and the way out; empty where more GPUs would not help. wanted: GPUs of one node that a fleet without room for
    it lacks; None: as many as it asks for.
    """

    needed: str = ""
    why: str = ""
    as_asked: int = 0
    unfit: str = ""
    wanted: int | None = None


def fit_words(fit: BaseFit, shapes: Sequence[Shape]) -> FitWords:
    """`shapes` are those of the fleet's nodes."""
    least = _fewest((shape.kind, gpus) for shape in shapes if (gpus := fit.narrowest(shape)) is not None)
    if least:
        if max(least.values()) <= fit.gpus:
            return FitWords()
        some = min(least.values()) <= fit.gpus
        return FitWords(
            needed=" or ".join(gpu_count(gpus, kind) for kind, gpus in least.items()),
            why=_why(fit.gpus, "On some types its" if some else "Its"),
            as_asked=fit.gpus if some else 0,
        )
    bounded = _fewest((shape.kind, gpus) for shape in shapes if (gpus := fit.needed(shape)) and gpus <= shape.gpus)
    if bounded and fit.max_gpus is not None:
        kind, gpus = min(bounded.items(), key=lambda item: item[1])
        return FitWords(
            unfit=f"Its base needs {gpu_count(gpus, kind)} of one node, which share it layer by layer, and max_gpus allows "
            f"{fit.max_gpus}; raise max_gpus to {gpus}, or leave it out, {_SMALLER}."
        )
    other = min((gpus for shape in shapes if (gpus := shape.gpus_for(fit.weight_bytes, not fit.copies))), default=None)
    if other is not None and other > fit.gpus:
        return FitWords(unfit=f"Its base fits on no doubling of gpus {fit.gpus}; take gpus {other}, {_SMALLER}.")
    beyond = _fewest((shape.kind, gpus) for shape in shapes if (gpus := fit.needed(shape)) and gpus > shape.gpus)
    if not beyond:
        return FitWords()
    kind, gpus = min(beyond.items(), key=lambda item: item[1])
    most = max(shape.gpus for shape in shapes if shape.kind == kind)
    limited = f", and max_gpus allows {fit.max_gpus}" if fit.max_gpus is not None and fit.max_gpus < gpus else ""
    return FitWords(
        unfit=f"Its base needs {gpu_count(gpus, kind)} of one node, which share it layer by layer, but the largest of these "
        f"nodes has {most}{limited}; {_SMALLER.removeprefix('or ')}.",
        wanted=None if limited else gpus,
    )


_SMALLER = "or take a smaller base or precision nf4, or wait until a roomier node joins"


def _why(asked: int, whose: str) -> str:
    """A base that needs more than one GPU may fit on fewer than the number that a task asks for."""
    return "Its base does not fit on fewer." if asked == 1 else f"{whose} base does not fit on the {asked} that it asks for."


def wide_for_base(gpus: int, asked: int, device_type: str) -> str:
    """For the owner of a task that starts on more GPUs than it asks for: 2 x NVIDIA L4: its base does not fit on 1."""
    return f"{gpu_count(gpus, device_type)}: its base does not fit on {asked}."


def _fewest(found: Iterable[tuple[str, int]]) -> dict[str, int]:
    """By type of GPU, sorted."""
    least: dict[str, int] = {}
    for kind, gpus in sorted(found):
        least.setdefault(kind, gpus)
    return least
