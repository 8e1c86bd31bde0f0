"""Google's jax_privacy: DP-SGD and DP-BandMF, whose example is a client. Runs where jax_privacy is installed."""

from collections.abc import Callable
from functools import cache, partial
from importlib.metadata import version
from typing import Any

import dp_accounting
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax_privacy import batch_selection, clipping
from jax_privacy.experimental.execution_plan import BandMFExecutionPlanConfig
from jax_privacy.matrix_factorization import toeplitz

from benchmarks.peers.work import Job, Model, measure, scores, serve

RELATION = dp_accounting.NeighboringRelation.REPLACE_SPECIAL  # zero-out, as fedamp charges
BATCHES = 128  # cohorts are padded to a multiple of this, so that few sizes are compiled


def planned(job: Job, bands: int, noise_multiplier: float) -> BandMFExecutionPlanConfig:
    """The library's plan, with noise that is calibrated before."""
    return BandMFExecutionPlanConfig.default(
        num_bands=bands,
        iterations=job.rounds,
        epsilon=None,
        delta=None,
        noise_multiplier=noise_multiplier,
        sampling_prob=job.check_in_rate * bands,  # of one of so many groups: the same expected cohort
        l2_clip_norm=job.clip,
        noise_seed=job.seed,
    )


@cache
def calibrated(rounds: int, check_in_rate: float, bands: int, epsilon: float, delta: float) -> tuple[float, float]:
    """Noise multiplier that the library's accountant finds, and the epsilon that it then says."""
    config = BandMFExecutionPlanConfig.default(
        num_bands=bands, iterations=rounds, epsilon=epsilon, delta=delta, sampling_prob=check_in_rate * bands
    )
    event = config.plan.dp_event
    inner = event
    while not isinstance(inner, dp_accounting.GaussianDpEvent):
        inner = inner.event
    accountant = dp_accounting.pld.PLDAccountant(RELATION).compose(event)
    return float(inner.noise_multiplier), float(accountant.get_epsilon(delta))


@cache
def best_bands(rounds: int, check_in_rate: float, epsilon: float, delta: float) -> int:
    """With the least error of the released sums on average, as Choquette-Choo et al. (2023) choose; at least two."""

    def error(bands: int) -> float:
        noise, _ = calibrated(rounds, check_in_rate, bands, epsilon, delta)
        strategy = toeplitz.optimize_banded_toeplitz(n=rounds, bands=bands, max_optimizer_steps=500)
        squared = jnp.mean(toeplitz.per_query_error(strategy_coef=strategy, n=rounds))
        return float(noise**2 * jnp.sum(strategy**2) * squared)

    allowed = [bands for bands in (2, 3, 4, 5, 6, 10, 12, 15, 20) if rounds % bands == 0]
    return min((bands for bands in allowed if bands * check_in_rate <= 1), key=error)


def loss(model: Any, inputs: Any, labels: Any) -> Any:
    own = labels >= 0  # the library's batches have examples of one shape: shorter clients are padded
    found = scores(model, inputs, jax.nn.relu)
    return optax.softmax_cross_entropy_with_integer_labels(found, jnp.maximum(labels, 0)).mean(where=own)


def local_update(job: Job, model: Any, inputs: Any, labels: Any) -> Any:
    """What a client would send: the difference that its steps make."""
    trained = model
    for _ in range(job.steps):
        gradient = jax.grad(loss)(trained, inputs, labels)
        trained = jax.tree.map(lambda value, slope: value - job.local_rate * slope, trained, gradient)
    return jax.tree.map(jnp.subtract, trained, model)


def train(job: Job, bands: int, noise: float, round_done: Callable[[Model], None]) -> dict[str, Any]:
    plan = planned(job, bands, noise).plan
    # The library's own transformation for what is no gradient; its sensitivity is that of the plan: 1.
    update = clipping.clipped_fun(
        partial(local_update, job),
        batch_argnums=(1, 2),
        keep_batch_dim=False,
        l2_clip_norm=job.clip,
        rescale_to_unit_norm=True,
    )
    assert update.sensitivity(RELATION) == 1.0
    server = optax.sgd(job.server_rate * job.clip / job.cohort, momentum=job.momentum)

    @jax.jit
    def play(model: Any, noise_state: Any, state: Any, inputs: Any, labels: Any, padding: Any) -> Any:
        total = update(model, inputs, labels, is_padding_example=padding)
        noisy, noise_state = plan.noise_addition_transform.update(total, noise_state)
        change, state = server.update(jax.tree.map(jnp.negative, noisy), state)
        return optax.apply_updates(model, change), noise_state, state

    inputs, labels = job.partition()
    blank = np.zeros((1, *inputs.shape[1:]), inputs.dtype), np.zeros((1, labels.shape[1]), labels.dtype)
    inputs, labels = (np.concatenate(parts) for parts in zip((inputs, labels), blank, strict=True))  # at -1
    model = {name: jnp.asarray(value) for name, value in job.first_model().items()}
    sent = sum(value.nbytes for value in model.values())
    noise_state, state = plan.noise_addition_transform.init(model), server.init(model)
    batches = plan.batch_selection_strategy.batch_iterator(job.clients, rng=np.random.default_rng(job.seed))
    for members in batches:
        padded = batch_selection.pad_to_multiple_of(members, BATCHES)
        model, noise_state, state = play(model, noise_state, state, inputs[padded], labels[padded], padded < 0)
        round_done({name: np.asarray(value) for name, value in model.items()})
    return {"bytes": 2 * sent}


def answer(job: Job) -> dict[str, Any]:
    """One training by jax_privacy, calibrated before the clock starts."""
    asked = (job.rounds, job.check_in_rate)
    bands = best_bands(*asked, job.epsilon, job.delta) if job.scheme == "banded" else 1
    noise, own = calibrated(*asked, bands, job.epsilon, job.delta)
    found = {"version": version("jax_privacy"), "noise_multiplier": noise, "own_epsilon": own, "bands": bands}
    return found | measure(job, lambda done: train(job, bands, noise, done))


if __name__ == "__main__":
    serve(answer)
