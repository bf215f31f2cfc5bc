"""Bases whose files hold several of a layer's matrices as one: Phi-3's q, k and v, and its gate and up.

They are taken apart as they are read, so a block, an arena and a shard know single matrices alone; and what leaves for PEFT is
joined again (adapters/joined_adapters.py). Where rotary turns only the first part of a head's numbers, q's and k's rows are
read in another order: the turned pairs lie half a head apart then, as in every other family, and the rest turns by no angle.
"""

from collections.abc import Mapping
from functools import partial

import torch
from torch import Tensor
from transformers import PreTrainedConfig

from contract.model_types import joined_parts
from worker.model.arena_layout import StoredRows
from worker.model.base_weight_reader import PATHS, UnreadTensor, matrices_of
from worker.model.families import UnsupportedModelError, head_size, turned_size


def stored_rows(config: PreTrainedConfig) -> list[dict[str, StoredRows]]:
    """By layer: where its matrices stand in the base's files, by module; those that stand there by themselves are left out."""
    matrices, orders = matrices_of(config), _orders(config)
    parts = []
    for path, modules in _paths(config).items():
        whole, first = sum(matrices[module][0] for module in modules), 0
        for module in modules:
            parts.append((module, path, first, whole))
            first += matrices[module][0]
    return [
        {
            module: StoredRows(f"model.layers.{layer}.{path}", first, whole, orders.get(module))
            for module, path, first, whole in parts
        }
        for layer in range(config.num_hidden_layers)
    ]


def stored_shapes(config: PreTrainedConfig, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, tuple[int, ...]]:
    """`shapes_of` by the names that the base's files have."""
    found = dict(shapes)
    for layer, stored in enumerate(stored_rows(config)):
        for module, rows in stored.items():
            _, columns = found.pop(f"model.layers.{layer}.{PATHS[module]}.weight")
            found[f"{rows.name}.weight"] = rows.whole, columns
    return found


def taken_apart(config: PreTrainedConfig, held: Mapping[str, UnreadTensor]) -> dict[str, UnreadTensor]:
    """The base's tensors by the names of `shapes_of`. Raises UnsupportedModelError where a joined one is missing or has another
    shape."""
    found, matrices = dict(held), matrices_of(config)
    for layer, stored in enumerate(stored_rows(config)):
        for module, rows in stored.items():
            count, columns = matrices[module]
            name = f"{rows.name}.weight"
            if name not in held or held[name].shape != (rows.whole, columns):
                raise UnsupportedModelError(
                    f"the weights lack, or have in another shape: {name} {[rows.whole, columns]}; bring the folder anew"
                )
            found.pop(name, None)
            read = partial(_read, held[name], rows, count)
            found[f"model.layers.{layer}.{PATHS[module]}.weight"] = UnreadTensor((count, columns), held[name].dtype, read)
    return found


def _read(joined: UnreadTensor, rows: StoredRows, count: int, some: slice) -> Tensor:
    if rows.order is None:
        start, stop, _ = some.indices(count)
        return joined.read(slice(rows.first + start, rows.first + stop))
    places = rows.places(count)[some]
    first = int(places.min()) if len(places) else 0
    last = int(places.max()) + 1 if len(places) else 0
    return joined.read(slice(first, last))[places - first]


def _paths(config: PreTrainedConfig) -> dict[str, tuple[str, ...]]:
    """The joined matrices of a layer, by their paths in it."""
    return {f"{PATHS[modules[0]].split('.')[0]}.{name}": modules for name, modules in joined_parts(config.model_type).items()}


def _orders(config: PreTrainedConfig) -> dict[str, tuple[int, ...]]:
    """The rows of q and of k, in the order that they are read in; none where rotary turns whole heads."""
    size, turned = head_size(config), turned_size(config)
    if turned == size:
        return {}
    half, kept = turned // 2, (size - turned) // 2
    head = [*range(half), *range(turned, turned + kept), *range(half, turned), *range(turned + kept, size)]
    of_heads = torch.arange(config.num_attention_heads)[:, None] * size + torch.tensor(head)
    return {
        "q_proj": tuple(of_heads.flatten().tolist()),
        "k_proj": tuple(of_heads[: config.num_key_value_heads].flatten().tolist()),
    }
