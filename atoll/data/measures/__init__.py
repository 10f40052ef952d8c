"""How unlike the clients are: in labels, sizes, inputs and gradients.

count_table.py  of a table of label counts (clients by classes): numbers in, numbers out
labels.py       the same of a partition, as one `Skew`
features.py     can a classifier tell a client's inputs from the others'?
gradients.py    do the clients' gradients point the same way?
"""

from atoll.data.measures.count_table import effective_classes, emd, jensen_shannon, label_entropy, total_variation
from atoll.data.measures.features import FeatureShift, feature_shift
from atoll.data.measures.gradients import gradient_dissimilarity
from atoll.data.measures.labels import Skew, label_counts, label_skew, size_gini

__all__ = [
    "FeatureShift",
    "Skew",
    "effective_classes",
    "emd",
    "feature_shift",
    "gradient_dissimilarity",
    "jensen_shannon",
    "label_counts",
    "label_entropy",
    "label_skew",
    "size_gini",
    "total_variation",
]
