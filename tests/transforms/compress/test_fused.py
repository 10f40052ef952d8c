"""The kernels of compressors compute what torch computes."""

import pytest
import torch

from atoll import rng
from atoll.transforms.compress import fused
from atoll.transforms.compress.sparse import random_places
from tests.support import compressor_kernels
from tests.support.interpreter import interpreted, needs_triton
from tests.support.marks import slow


@needs_triton
def test_the_kernels_of_compressors_compute_the_same_under_tritons_interpreter() -> None:
    program = "from tests.support.compressor_kernels import compare; compare('cpu', 40_000)"
    interpreted(program)


@pytest.mark.gpu
def test_the_kernels_of_compressors_compute_the_same_on_a_gpu() -> None:
    compressor_kernels.compare("cuda", 1_605_632)


def test_kernels_are_for_floats_on_a_gpu() -> None:
    assert not fused.usable(torch.zeros(3))
    assert not fused.usable(torch.zeros(3, dtype=torch.float64))


@pytest.mark.parametrize(("n", "k"), [(1, 1), slow(10, 10), (10, 3), slow(1000, 7), slow(97, 96)])
def test_random_places_are_different_and_every_place_has_the_same_chance(n: int, k: int) -> None:
    draws = 4000
    counts = torch.zeros(n)
    for i in range(draws):
        places = random_places(rng.key("places", i), n, k)
        assert len(set(places.tolist())) == k
        assert 0 <= int(places.min()) <= int(places.max()) < n
        counts[places] += 1
    expected = draws * k / n
    spread = (expected * (1 - k / n)) ** 0.5
    assert ((counts - expected).abs() <= 5 * spread + 1e-9).all()
