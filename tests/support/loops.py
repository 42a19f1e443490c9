"""Small trainings of a flow on rows that are not Gaussian, to be interrupted and compared."""

import numpy as np
import torch

from fastflow.train.methods.flow import FlowConfig
from fastflow.train.methods.loop import Schedule, Training, fit_flow

CONFIG = FlowConfig(16, 2, 2, 8)
SCHEDULE = Schedule(batch_size=20, epochs=3, save_steps=4)


def data(rows=100):
    rng = np.random.default_rng(5)
    x = rng.normal(size=(rows, 16)) @ rng.normal(size=(16, 16)) + rng.normal(size=16)
    return (x + 0.3 * x[:, ::-1] ** 2).astype(np.float32)


X = data()


class Interruption(Exception):
    pass


def interrupt_at(step):
    def log(done, values):
        if done == step:
            raise Interruption

    return log


def train(schedule=SCHEDULE, config=CONFIG, source=X.__getitem__, rows=100, checkpoint=None, **options):
    return fit_flow(source, rows, config, Training(schedule, **options), checkpoint).state_dict()


def same(a, b):
    return all(torch.equal(a[name], b[name]) for name in a) and set(a) == set(b)
