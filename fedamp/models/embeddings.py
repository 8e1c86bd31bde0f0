"""Train, for each client, only the rows of an embedding table that its own tokens touch, as if it trained all.

The other rows have a gradient of zero. So a client needs a small table of its own. The content of each place follows
from the client's tokens, and the number of places from a public number.

:mod:`fedamp.models.pieces` decides where this is done; :func:`fedamp.client.clipping.clip_and_sum` adds the rows up.
"""

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.func import functional_call

from fedamp.base.devices import any_order
from fedamp.models.custom import generators_from


def tables(module: nn.Module) -> dict[str, str]:
    """Find the plain embeddings of a model.

    An embedding is left out whose weight is used elsewhere, too, or whose rows are treated differently (padding, a
    largest norm, scaled or sparse gradients).

    Returns:
        The path of the module, by the name of its parameter.
    """
    modules = dict(module.named_modules())
    users: dict[int, int] = {}
    for each in modules.values():
        for parameter in each.parameters(recurse=False):
            users[id(parameter)] = users.get(id(parameter), 0) + 1
    return {
        f"{path}.weight".lstrip("."): path
        for path, each in modules.items()
        if type(each) is nn.Embedding
        and isinstance(each.weight, nn.Parameter)
        and each.padding_idx is None
        and each.max_norm is None
        and not each.scale_grad_by_freq
        and not each.sparse
        and users[id(each.weight)] == 1
    }


def touched(tokens: Tensor, places: int) -> Tensor:
    """Return the different tokens of each client, ascending; the last places repeat the largest one.

    Args:
        tokens: int64 [clients, ...].
        places: number of places, at least as many as a client has different tokens.

    Returns:
        int64 [clients, places].

    >>> touched(torch.tensor([[5, 2, 5]]), 4).tolist()
    [[2, 5, 5, 5]]
    """
    found = torch.sort(tokens.flatten(1), dim=1)[0]
    is_new = torch.ones_like(found, dtype=torch.bool)
    is_new[:, 1:] = found[:, 1:] != found[:, :-1]
    rows = found[:, -1:].repeat(1, places)
    place = is_new.cumsum(1) - 1
    with any_order():  # equal tokens have one place
        return rows.scatter_(1, place, found)


def is_spare(rows: Tensor) -> Tensor:
    """Say which places of ``touched`` repeat the one before: bool [clients, places]."""
    spare = torch.zeros_like(rows, dtype=torch.bool)
    spare[:, 1:] = rows[:, 1:] == rows[:, :-1]
    return spare


def takes_rows(module: nn.Module, paths: Mapping[str, str], input_shape: tuple[int, ...], vocabulary: int) -> bool:
    """Say whether the model answers with the rows of its tokens as with whole tables.

    It does not where it looks up sums of tokens, for example, or uses a table in another way, too. Two random inputs
    are tried.

    Args:
        module: the model.
        paths: as :func:`tables` gives them.
        input_shape: of one record.
        vocabulary: number of tokens.
    """

    def outputs(values: dict[str, Tensor]) -> Tensor:
        with generators_from(1), torch.no_grad():
            found: Tensor = functional_call(module, values, (tokens,))
        return found

    with generators_from(0):
        tokens = torch.randint(vocabulary, (2, *input_shape))
    rows, whole = touched(tokens[None].flatten(1), tokens.numel())[0], outputs({})
    try:
        with with_rows(module, paths, rows):
            found = outputs({name: module.get_parameter(name).detach()[rows] for name in paths})
    except Exception:  # a custom model may raise anything
        return False
    return found.shape == whole.shape and torch.allclose(found, whole)


@contextmanager
def with_rows(module: nn.Module, paths: Mapping[str, str], rows: Tensor) -> Iterator[None]:
    """Give the embeddings only the rows of one client while the context lasts: they look for the place of each token.

    A token without a place gets numbers that are not finite, so that the client fails and adds nothing.

    Args:
        module: the model, which is called with tables [places, numbers].
        paths: as :func:`tables` gives them.
        rows: ascending tokens, int64 [places].
    """

    known: list[Tensor] = []  # of the call under way

    def look(embedding: nn.Module, arguments: tuple[Tensor, ...]) -> tuple[Tensor]:
        places = torch.searchsorted(rows, arguments[0].contiguous()).clamp(max=rows.shape[0] - 1)
        known[:] = [rows[places] == arguments[0]]
        return (places,)

    def check(embedding: nn.Module, arguments: tuple[Tensor, ...], output: Tensor) -> Tensor:
        return torch.where(known[0][..., None], output, math.nan)

    embeddings = [module.get_submodule(path) for path in paths.values()]
    handles = [each.register_forward_pre_hook(look) for each in embeddings]
    handles += [each.register_forward_hook(check) for each in embeddings]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
