"""Blocks of arrays arrive as they were sent, at places that depend on shapes alone."""

import numpy as np
import torch

from fedamp.client.stacks import fetch_block, send_block
from tests.client.counted import counts_of
from tests.client.second_device import ELSEWHERE, SecondDevice

SENT = [
    torch.arange(6.0).view(2, 3).mT,
    torch.tensor([True, False, True]),
    torch.empty(0, 4),
    torch.tensor(-7),
    torch.linspace(-1, 1, 5, dtype=torch.float64),
]


def test_a_block_arrives_as_it_was_sent() -> None:
    with SecondDevice():
        there = send_block(SENT, str(ELSEWHERE))
        home = fetch_block(there)
        found = counts_of(lambda: fetch_block(send_block(SENT, str(ELSEWHERE))))
    for before, after, array in zip(SENT, there, home, strict=True):
        assert (after.shape, after.dtype, after.is_contiguous()) == (before.shape, before.dtype, True)
        np.testing.assert_array_equal(array, before.numpy())
    assert (found.into, found.home) == (1, 1)


def test_every_array_of_a_block_begins_at_a_multiple_of_512_bytes() -> None:
    with SecondDevice():
        there = send_block(SENT, str(ELSEWHERE))
    offsets = [each.storage_offset() * each.element_size() for each in there]
    assert all(offset % 512 == 0 for offset in offsets)


def test_nothing_is_copied_on_the_cpu() -> None:
    assert [id(each) for each in send_block(SENT, "cpu")] == [id(each) for each in SENT]
    assert np.shares_memory(fetch_block(SENT[-1:])[0], SENT[-1].numpy())
