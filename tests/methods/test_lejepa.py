"""LeJEPA: its statistic against quadrature, a closed form and expectations; its directions; its loss."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import integrate, special
from torch import nn

from vje.methods.lejepa import LeJEPA, epps_pulley, prediction_loss, sigreg
from vje.networks.encoders import Encoder
from vje.random import Draws, Stream

EXPECTED = math.sqrt(2 * math.pi) - math.sqrt(2 * math.pi / 3)
"""Of the statistic under N(0, 1), for any number of samples: the integral of (1 - exp(-t^2)) exp(-t^2/2)."""


def quadrature(x, t_max):
    """The statistic by scipy, with complex numbers."""

    def integrand(t):
        return abs(np.exp(1j * t * x).mean() - np.exp(-(t**2) / 2)) ** 2 * np.exp(-(t**2) / 2)

    return len(x) * integrate.quad(integrand, -t_max, t_max, epsabs=1e-12, limit=200)[0]


def closed_form(x):
    """The integral over the whole line, done by hand (Baringhaus and Henze 1988, for one dimension)."""
    count = len(x)
    pairs = np.exp(-((x[:, None] - x) ** 2) / 2).sum() * math.sqrt(2 * math.pi) / count
    return pairs - 2 * math.sqrt(math.pi) * np.exp(-(x**2) / 4).sum() + count * math.sqrt(2 * math.pi / 3)


def column(x):
    return torch.tensor(x, dtype=torch.float64).unsqueeze(1)


def statistic(x, **options):
    return epps_pulley(column(x), **options).item()


def linear_encoder(dim=6):
    return Encoder(nn.Sequential(nn.Flatten(), nn.Linear(48, dim)), dim)


def two_views(batch=5, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(batch, 3, 4, 4, generator=generator, dtype=torch.float64) for _ in range(2)]


def make(**options):
    torch.manual_seed(0)
    return LeJEPA(linear_encoder(), **{"projection": 4, "layers": 1, "slices": 9, **options}).double()


def draws(first=0, batch=5, seed=3, step=11):
    return Draws(seed, step, torch.arange(first, first + batch))


# Epps and Pulley's statistic


@pytest.mark.parametrize("t_max", [1.0, 3.0, 5.0])
def test_many_knots_give_the_integral(t_max):
    x = np.random.default_rng(0).normal(0.3, 1.5, 12)
    assert statistic(x, knots=4001, t_max=t_max) == pytest.approx(quadrature(x, t_max), rel=1e-6)


@settings(max_examples=50)
@given(st.lists(st.floats(-3, 3), min_size=1, max_size=20))
def test_the_paper_s_knots_are_enough(values):
    """The trapezoid rule is nearly exact for such an integrand, and little of it is beyond 5."""
    x = np.array(values)
    assert statistic(x) == pytest.approx(closed_form(x), rel=1e-3, abs=1e-4 * len(x))


def test_the_knots_are_those_of_numpy_s_trapezoid_on_both_sides():
    x = np.random.default_rng(1).normal(0.3, 2.0, 7)
    t = np.linspace(-5, 5, 17)
    empirical = np.array([np.exp(1j * s * x).mean() for s in t])
    normal = np.exp(-(t**2) / 2)
    expected = 7 * np.trapezoid(np.abs(empirical - normal) ** 2 * normal, t)
    assert statistic(x) == pytest.approx(expected, rel=1e-12)


def test_normal_samples_score_low_and_others_high():
    quantiles = (np.arange(512) + 0.5) / 512
    normal = special.ndtri(quantiles)
    assert statistic(normal) < 1e-3
    uniform = math.sqrt(12) * (quantiles - 0.5)  # the same mean and variance
    others = {
        "uniform": uniform,
        "shifted": normal + 1,
        "wide": 2 * normal,
        "narrow": normal / 2,
        "signs": 2 * (normal > 0) - 1,
    }
    assert all(statistic(x) > 2 * EXPECTED for x in others.values())
    constant = math.sqrt(2 * math.pi) - 2 * math.sqrt(math.pi) + math.sqrt(2 * math.pi / 3)
    assert statistic(0 * normal) == pytest.approx(512 * constant, rel=1e-4)  # collapsed: (1 - phi)^2 phi


@pytest.mark.parametrize("count", [4, 64])
def test_the_expectation_under_the_normal_does_not_depend_on_the_number_of_samples(count):
    x = torch.randn(count, 4000, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    values = epps_pulley(x)
    error = values.std().item() / math.sqrt(4000)
    assert values.shape == (4000,)
    assert abs(values.mean().item() - EXPECTED) < 4 * error < 0.1


def test_columns_and_leading_dimensions_are_independent():
    x = torch.randn(2, 3, 6, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    found = epps_pulley(x)
    for i, j, k in np.ndindex(2, 3, 5):
        assert found[i, j, k].item() == pytest.approx(statistic(x[i, j, :, k].tolist()), rel=1e-12)


def test_gradients():
    x = torch.randn(5, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(epps_pulley, x)


# SIGReg and the prediction loss


def test_sigreg_is_the_mean_over_directions_and_views():
    rng = np.random.default_rng(0)
    y, directions = rng.standard_normal((2, 6, 3)), rng.standard_normal((3, 4))
    directions /= np.linalg.norm(directions, axis=0)
    expected = np.mean([closed_form(view @ direction) for view in y for direction in directions.T])
    assert sigreg(torch.tensor(y), torch.tensor(directions)).item() == pytest.approx(expected, rel=1e-3)


def test_sigreg_tells_an_isotropic_gaussian_from_what_only_looks_like_one_along_the_axes():
    generator = torch.Generator().manual_seed(0)
    y = torch.randn(512, 8, generator=generator)
    directions = nn.functional.normalize(torch.randn(8, 256, generator=generator), dim=0)
    assert sigreg(y, directions).item() == pytest.approx(EXPECTED, abs=0.3)
    normal = torch.special.ndtri((torch.arange(512) + 0.5) / 512)
    repeated = normal.unsqueeze(1).expand(-1, 8)  # each feature N(0, 1), all the same
    assert sigreg(repeated, torch.eye(8)).item() < 1e-3
    assert sigreg(repeated, directions).item() > 10 * EXPECTED


def test_two_views_are_half_their_distance_from_their_mean():
    first, second = np.random.default_rng(0).standard_normal((2, 5, 3))
    y = torch.tensor(np.stack([first, second]))
    assert prediction_loss(y).item() == pytest.approx(((first - second) ** 2).mean() / 4)
    assert prediction_loss(y[:1].expand(4, 5, 3)).item() == pytest.approx(0, abs=1e-30)


# Directions


def test_directions_are_unit_vectors_that_depend_on_seed_and_step_alone():
    model, y = make(slices=50), torch.zeros(2, 5, 4, dtype=torch.float64)
    found = model._directions(y, draws())
    assert found.shape == (4, 50)
    assert found.dtype == torch.float64
    torch.testing.assert_close(found.norm(dim=0), torch.ones(50, dtype=torch.float64))
    for same in (draws(first=64), draws(batch=2), Draws(3, torch.tensor(11), torch.arange(5))):
        assert torch.equal(model._directions(y, same), found)
    for other in (draws(seed=4), draws(step=12)):
        assert (model._directions(y, other) - found).abs().max() > 0.1


def test_directions_are_uniform_on_the_sphere_and_unrelated_to_other_draws():
    model = make(slices=4000, projection=3)
    found = model._directions(torch.zeros(2, 1, 3, dtype=torch.float64), draws())
    torch.testing.assert_close(found.mean(1), torch.zeros(3, dtype=torch.float64), rtol=0, atol=0.05)
    second_moments = found @ found.T / 4000
    torch.testing.assert_close(second_moments, torch.eye(3, dtype=torch.float64) / 3, rtol=0, atol=0.03)
    for stream in (Stream.VIEW_1, Stream.VIEW_2, Stream.POSTERIOR):
        other = draws(batch=1).normal(stream, 12000).view(3, 4000).double()
        assert abs(np.corrcoef(found.flatten(), other.flatten())[0, 1]) < 0.05


def test_without_draws_directions_come_from_the_global_generator():
    model, views = make(), two_views()
    losses = []
    for seed in (0, 0, 1):
        torch.manual_seed(seed)
        losses.append(model(views).loss.item())
    assert losses[0] == losses[1] != losses[2]


def test_those_are_unit_vectors_too():
    found = make(slices=50)._directions(torch.zeros(2, 5, 4, dtype=torch.float64), None)
    assert found.shape == (4, 50)
    torch.testing.assert_close(found.norm(dim=0), torch.ones(50, dtype=torch.float64))


# The method


def reference_loss(outputs, directions, lambd):
    first, second = outputs
    prediction = sum(((x - (first + second) / 2) ** 2).mean() for x in outputs) / 2
    regularization = np.mean([[quadrature(x @ d, 5.0) for d in directions.T] for x in outputs])
    return (1 - lambd) * prediction + lambd * regularization, prediction, regularization


@pytest.mark.parametrize("lambd", [0.0, 0.3, 1.0])
def test_the_loss_is_the_weighted_sum_for_the_projections(lambd):
    model, views = make(lambd=lambd, knots=401), two_views()
    outputs = [model.projector(model.encoder(x)).detach().numpy() for x in views]
    directions = draws(0, 1).normal(Stream.SLICES, 4 * 9).view(4, 9).double().numpy()
    directions /= np.linalg.norm(directions, axis=0)
    loss, prediction, regularization = reference_loss(outputs, directions, lambd)
    output = model(views, draws(first=20))
    assert output.loss.item() == pytest.approx(loss, rel=1e-4)
    parts = {name: x.item() for name, x in output.parts.items()}
    assert parts == pytest.approx({"loss": loss, "prediction": prediction, "sigreg": regularization}, rel=1e-4)
    torch.testing.assert_close(output.embeddings, model.encoder(views[0]).float())
    assert not output.embeddings.requires_grad


def test_the_views_are_normalised_together_unless_told_otherwise():
    views = two_views()
    views[1] = 3 * views[1] + 1
    joint, apart = make(layers=2, hidden=8), make(layers=2, hidden=8, batch_norm="separate")
    z = [joint.encoder(x) for x in views]
    together = torch.stack(joint.projector(torch.cat(z)).chunk(2))
    separate = torch.stack([apart.projector(x) for x in z])
    for model, y in ((joint, together), (apart, separate)):
        assert model(views, draws()).parts["prediction"].item() == pytest.approx(y.var(0, correction=0).mean().item())


def test_under_autocast_the_loss_is_float32():
    model, views = make().float(), [x.float() for x in two_views()]
    seen = []
    model.projector.register_forward_hook(lambda *args: seen.append(args[-1].detach()))
    with torch.autocast("cpu", torch.bfloat16):
        output = model(views, draws())
    assert seen[0].dtype == torch.bfloat16
    y = torch.stack(seen[0].double().chunk(2))
    expected = 0.95 * prediction_loss(y) + 0.05 * sigreg(y, model._directions(y, draws()))
    assert output.loss.dtype == torch.float32
    assert output.loss.item() == pytest.approx(expected.item(), rel=1e-5)


def test_minimising_sigreg_whitens():
    """An affine map of normal samples, badly scaled, correlated and off centre, is turned into a rotation."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(256, 2, generator=generator)
    matrix = torch.tensor([[2.0, 1.5], [0.0, 0.3]], requires_grad=True)
    shift = torch.tensor([1.0, -0.5], requires_grad=True)
    optimizer = torch.optim.Adam([matrix, shift], lr=0.05)
    for _ in range(150):
        optimizer.zero_grad()
        directions = nn.functional.normalize(torch.randn(2, 16, generator=generator), dim=0)
        sigreg(x @ matrix + shift, directions).backward()
        optimizer.step()
    torch.testing.assert_close((matrix.T @ matrix).detach(), torch.eye(2), rtol=0, atol=0.2)
    torch.testing.assert_close(shift.detach(), torch.zeros(2), rtol=0, atol=0.2)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"lambd": 1.5}, r"lambd shares the loss .* between 0 and 1, got 1\.5"),
        ({"knots": 16}, "knots must be an odd number, 3 or more, got 16"),
        ({"knots": 1}, "knots must be an odd number, 3 or more, got 1"),
        ({"t_max": 0.0}, r"t_max must be positive, got 0\.0"),
        ({"slices": 0}, "must be 1 or more, got 2048, 128, 3 and 0"),
    ],
)
def test_bad_settings_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        LeJEPA(linear_encoder(), **options)
