"""The same rounds as one JAX program: the jit of a vmap of gradients, and of everything else that a round does.

What somebody writes who wants one thing only, a fast simulation: no messages, no ledger, no checkpoint, noise from a
statistical generator, sums in float32. All data lie ready in memory.
"""

import os
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np

Values = Mapping[str, Any]


def limit_threads(threads: int) -> None:
    """How many threads XLA may use; before JAX is imported."""
    os.environ["NPROC"] = str(threads)
    if threads == 1:
        os.environ["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=false"


def rounds(
    architecture: str,
    model: Mapping[str, np.ndarray],
    data: tuple[np.ndarray, np.ndarray, np.ndarray],
    *,
    steps: int,
    rate: float,
    clip: float,
    noise_multiplier: float,
    together: int,
    library: bool,
    each: Callable[[int], None],
    count: int,
) -> None:
    """Play rounds in which everybody takes part.

    Args:
        architecture: ``mlp``, ``cnn`` or ``resnet20``.
        model: where training starts.
        data: inputs [clients, records, ...], labels [clients, records], weight of every record in its client's loss.
        together: clients under one vmap; the program goes over the others in turn, in the same jit.
        library: whether jax_privacy clips and adds up the gradients, of clients with one record and one step.
        each: called after every round.
    """
    import jax
    import jax.numpy as jnp

    forward = partial(_FORWARD[architecture], jax, jnp)
    clients = len(data[0])

    def loss(values: Values, inputs: Any, labels: Any, weights: Any) -> Any:
        logits = jax.nn.log_softmax(forward(values, inputs))
        return -(jnp.take_along_axis(logits, labels[:, None], 1)[:, 0] * weights).sum()

    def update(start: Values, one: tuple[Any, Any, Any]) -> Values:
        values = start
        for _ in range(steps):
            gradients = jax.grad(loss)(values, *one)
            values = {name: value - rate * gradients[name] for name, value in values.items()}
        change = {name: value - start[name] for name, value in values.items()}
        norm = jnp.sqrt(sum((value**2).sum() for value in change.values()))
        return {name: value * jnp.minimum(1.0, clip / norm) for name, value in change.items()}

    def summed(start: Values, stack: tuple[Any, Any, Any]) -> Values:
        if library:
            from jax_privacy.clipping import clipped_grad

            clipped = clipped_grad(
                loss, l2_clip_norm=clip / rate, batch_argnums=(1, 2, 3), keep_batch_dim=False, nan_safe=False
            )
            return {name: -rate * value for name, value in clipped(start, *stack).items()}
        updates = jax.vmap(update, in_axes=(None, 0))(start, stack)
        return {name: value.sum(0) for name, value in updates.items()}

    @partial(jax.jit, donate_argnums=0)
    def play(start: Values, key: Any, data: tuple[Any, Any, Any]) -> Values:
        def some(total: Values, stack: tuple[Any, Any, Any]) -> tuple[Values, None]:
            return {name: total[name] + value for name, value in summed(start, stack).items()}, None

        stacks = tuple(part.reshape(-1, together, *part.shape[1:]) for part in data)
        total, _ = jax.lax.scan(some, {name: jnp.zeros_like(value) for name, value in start.items()}, stacks)
        keys = dict(zip(start, jax.random.split(key, len(start)), strict=True))
        return {
            name: value + (total[name] + clip * noise_multiplier * jax.random.normal(keys[name], value.shape)) / clients
            for name, value in start.items()
        }

    values = {name: jnp.asarray(value) for name, value in model.items()}
    ready = tuple(jnp.asarray(part) for part in data)
    for round_ in range(count):
        values = jax.block_until_ready(play(values, jax.random.key(round_), ready))
        each(round_)


def _mlp(jax: Any, jnp: Any, values: Values, inputs: Any) -> Any:
    hidden = inputs.reshape(len(inputs), -1)
    for layer in range(sum(name.startswith("hidden") for name in values) // 2):
        hidden = jax.nn.relu(hidden @ values[f"hidden.{layer}.weight"].T + values[f"hidden.{layer}.bias"])
    return hidden @ values["output.weight"].T + values["output.bias"]


def _cnn(jax: Any, jnp: Any, values: Values, inputs: Any) -> Any:
    for layer in range(sum(name.startswith("convolutions") for name in values) // 2):
        inputs = _convolution(jax, inputs, values[f"convolutions.{layer}.weight"], 1, 1)
        inputs = inputs + values[f"convolutions.{layer}.bias"][:, None, None]
        inputs = jax.nn.relu(_norm(jax, jnp, inputs, values[f"norms.{layer}.weight"], values[f"norms.{layer}.bias"]))
        inputs = jax.lax.reduce_window(inputs, -jnp.inf, jax.lax.max, (1, 1, 2, 2), (1, 1, 2, 2), "VALID")
    return inputs.reshape(len(inputs), -1) @ values["output.weight"].T + values["output.bias"]


def _resnet20(jax: Any, jnp: Any, values: Values, inputs: Any) -> Any:
    def layer(inputs: Any, name: str, number: str, stride: int, pad: int) -> Any:
        inputs = _convolution(jax, inputs, values[f"{name}.conv{number}.weight"], stride, pad)
        return _norm(jax, jnp, inputs, values[f"{name}.norm{number}.weight"], values[f"{name}.norm{number}.bias"])

    inputs = jax.nn.relu(layer(inputs, "stem", "", 1, 1))
    for stage in (1, 2, 3):
        for block in (0, 1, 2):
            name, stride = f"layer{stage}.{block}", 2 if stage > 1 and block == 0 else 1
            branch = jax.nn.relu(layer(inputs, f"{name}.branch", "1", stride, 1))
            branch = layer(branch, f"{name}.branch", "2", 1, 1)
            inputs = layer(inputs, f"{name}.shortcut", "", stride, 0) if stride == 2 else inputs
            inputs = jax.nn.relu(inputs + branch)
    return inputs.mean((2, 3)) @ values["output.weight"].T + values["output.bias"]


def _convolution(jax: Any, inputs: Any, kernel: Any, stride: int, pad: int) -> Any:
    return jax.lax.conv_general_dilated(inputs, kernel, (stride, stride), [(pad, pad)] * 2)


def _norm(jax: Any, jnp: Any, inputs: Any, weight: Any, bias: Any, groups: int = 4) -> Any:
    grouped = inputs.reshape(len(inputs), groups, -1)
    centred = grouped - grouped.mean(2, keepdims=True)
    scaled = centred * jax.lax.rsqrt((centred**2).mean(2, keepdims=True) + 1e-5)
    return scaled.reshape(inputs.shape) * weight[:, None, None] + bias[:, None, None]


_FORWARD: dict[str, Callable[..., Any]] = {"mlp": _mlp, "cnn": _cnn, "resnet20": _resnet20}
