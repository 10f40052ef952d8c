"""Where examples come from: one builder for each data set."""

from collections.abc import Callable

from atoll.data.dataset import Dataset
from atoll.data.fetch import Recipe
from atoll.data.sources.adult import ADULT, adult
from atoll.data.sources.bundled import breast_cancer, diabetes, digits
from atoll.data.sources.chat import CHAT, chat
from atoll.data.sources.cifar10 import CIFAR10, cifar10
from atoll.data.sources.covtype import COVTYPE, covtype
from atoll.data.sources.credit import CREDIT, credit
from atoll.data.sources.decoders import Tokens
from atoll.data.sources.fcube import fcube
from atoll.data.sources.films import FILMS, films
from atoll.data.sources.idx_images import FMNIST, MNIST, fmnist, mnist
from atoll.data.sources.library_text import library_text
from atoll.data.sources.movielens import MOVIELENS, movielens
from atoll.data.sources.quickdraw import QUICKDRAW, quickdraw
from atoll.data.sources.sentiment import SENTIMENT, SENTIMENT4, sentiment, sentiment4
from atoll.data.sources.sepsis import SEPSIS, sepsis
from atoll.data.sources.shakespeare import SHAKESPEARE, shakespeare
from atoll.data.sources.splits import stratified
from atoll.data.sources.synthetic import synthetic
from atoll.data.sources.toxicity import TOXICITY, toxicity

# What is fetched by name, verified and kept (docs/data.md).
PACKAGED: dict[str, Callable[..., Dataset]] = {
    "mnist": mnist,
    "fmnist": fmnist,
    "cifar10": cifar10,
    "adult": adult,
    "covtype": covtype,
    "shakespeare": shakespeare,
    "sentiment": sentiment,
    "sentiment4": sentiment4,
    "movielens": movielens,
    "films": films,
    "credit": credit,
    "sepsis": sepsis,
    "toxicity": toxicity,
    "chat": chat,
    "quickdraw": quickdraw,
}

RECIPES: dict[str, Recipe] = {
    recipe.name: recipe
    for recipe in (
        *(MNIST, FMNIST, CIFAR10, ADULT, COVTYPE, SHAKESPEARE, SENTIMENT, SENTIMENT4, MOVIELENS, FILMS, CREDIT),
        *(SEPSIS, TOXICITY, CHAT, QUICKDRAW),
    )
}

__all__ = [
    "PACKAGED",
    "RECIPES",
    "Tokens",
    "breast_cancer",
    "diabetes",
    "digits",
    "fcube",
    "library_text",
    "stratified",
    "synthetic",
]
