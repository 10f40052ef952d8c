"""fedjax: its `federated_averaging`, on its default backend (jitted client steps)."""

import jax
from common import main
from models import forward, from_torch, last, to_torch

if not hasattr(jax, "tree_map"):  # fedjax's last release is older than its removal
    jax.tree_map = jax.tree_util.tree_map


# user code
def train(job, tick):
    import fedjax
    from fedjax.algorithms import fed_avg

    examples = {c: dict(zip("xy", job.client(c), strict=True)) for c in range(job.work.clients)}
    data = fedjax.InMemoryFederatedData({c: {"x": last(held["x"]), "y": held["y"]} for c, held in examples.items()})
    sample = {"x": last(job.x[: job.work.batch]), "y": job.y[: job.work.batch]}
    model = fedjax.create_model_from_haiku(
        forward(job),
        sample,
        train_loss=lambda batch, scores: fedjax.metrics.unreduced_cross_entropy_loss(batch["y"], scores),
        train_kwargs={"train": True},
        eval_kwargs={"train": False},
    )
    algorithm = fed_avg.federated_averaging(
        fedjax.model_grad(model),
        fedjax.optimizers.sgd(job.work.rate),
        fedjax.optimizers.sgd(1.0),
        fedjax.ShuffleRepeatBatchHParams(batch_size=job.work.batch, num_epochs=job.work.epochs),
    )
    sampler = fedjax.client_samplers.UniformGetClientSampler(data, job.work.clients, seed=0)
    state = algorithm.init(from_torch(job.start))
    for _ in range(job.rounds):
        state, _ = algorithm.apply(state, sampler.sample())
        jax.block_until_ready(state.params)
        tick()
    return to_torch(state.params)


# end of user code

if __name__ == "__main__":
    main(train)
