"""Sink mass has the known values of simple maps, and ignores the first row and other maps of a batch."""

import torch

from attractor.analysis import sink_mass


def test_known_maps():
    collapsed = torch.zeros(5, 5)
    collapsed[:, 0] = 1
    assert sink_mass(collapsed) == 1
    assert sink_mass(torch.eye(5)) == 0
    uniform = torch.tril(torch.ones(5, 5)) / torch.arange(1, 6).unsqueeze(1)
    harmonic = sum(1 / n for n in range(1, 6))
    torch.testing.assert_close(sink_mass(uniform), torch.tensor((harmonic - 1) / 4))


def test_the_first_row_and_other_maps_of_a_batch_do_not_count():
    maps = torch.rand(3, 2, 6, 6).softmax(-1)
    assert sink_mass(maps).shape == (3, 2)
    other = maps.clone()
    other[..., 0, 0] = 7
    torch.testing.assert_close(sink_mass(other), sink_mass(maps))
    torch.testing.assert_close(sink_mass(maps)[1, 1], sink_mass(maps[1, 1]))
