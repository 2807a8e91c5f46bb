"""What scores are called in files, in figures and by people."""

LIKELIHOODS = ("nll", "ps_nll")
"""A method's own scores, of which larger means less typical with nothing fitted: the first there is stands for it."""

FIGURE_SCORES = (
    *("nll", "nll_directional", "variance_trace", "neg_kl", "neg_anisotropy"),
    *("ps_nll", "neg_kappa", "neg_elbo", "cosine_distance", "knn", "mahalanobis"),
)
CURVE_SCORES = ("nll", "ps_nll", "nll_directional", "neg_elbo_ten", "variance_trace", "knn", "mahalanobis", "energy")
"""Scores whose curves the report shows; more would hide each other."""
TITLES = {
    "nll": "NLL",
    "nll_directional": "NLL dir",
    "nll_radial": "NLL rad",
    "nll_centered": "NLL centred",
    "nll_mc": "NLL sampled",
    "variance_trace": "Tr(v)",
    "neg_kl": "-KL",
    "neg_anisotropy": "-CoV(v)",
    "ps_nll": "PS NLL",
    "neg_kappa": "-kappa",
    "neg_elbo": "-ELBO",
    "cosine_distance": "cosine distance",
    "knn": "k-NN distance",
    "mahalanobis": "Mahalanobis",
    "mahalanobis_class": "Mahalanobis (classes)",
    "feature_norm": "-|z|",
    "msp": "MSP",
    "energy": "energy",
    "react": "ReAct",
    "vim": "ViM",
}
VIEWS = {"_mirror": "mirrored too", "_ten": "ten crops"}
"""Ends of the names of scores that are means over several views of an image, and what these are."""
CLASSIFIER_SCORES = ("msp", "energy", "react", "vim")
CLASSIFIERS = {"own": "own classifier", "fitted": "fitted classifier"}


def title(score: str, classifier: str | None = None) -> str:
    """A score's name for people; of those on a linear classifier, with whose it was.

    >>> title("msp", "own"), title("msp", "fitted"), title("nll", "own")
    ('MSP (own classifier)', 'MSP (fitted classifier)', 'NLL')
    >>> title("nll_mirror")
    'NLL, mirrored too'
    """
    for end, words in VIEWS.items():
        if score.endswith(end):
            return f"{title(score.removesuffix(end), classifier)}, {words}"
    name = TITLES.get(score, score)
    return f"{name} ({CLASSIFIERS[classifier]})" if classifier and score in CLASSIFIER_SCORES else name


def chosen(detector: str, value: float) -> str:
    """The hyper-parameter of a detector, for people.

    >>> chosen("knn", 50), chosen("mahalanobis", 1), chosen("mahalanobis_class", 0), chosen("react", 90.0)
    ('k-NN distance k = 50', 'Mahalanobis of directions', 'Mahalanobis (classes) of features', 'ReAct percentile 90')
    """
    if detector.startswith("mahalanobis"):
        return f"{title(detector)} of {'directions' if value else 'features'}"
    words = {"knn": "k =", "react": "percentile"}
    return f"{title(detector)} {words[detector]} {value:g}"
