"""Train with the interface of scikit-learn: ``fedamp.FedampClassifier`` has ``fit``, ``predict`` and ``score``.

Records are arrays, and ``fit`` takes their owners. It needs scikit-learn, and adds no key of a scenario.
:mod:`~fedamp.extensions.estimator.classifier` has the class; docs/python.md explains it.
"""

from fedamp.extension import Extension

extension = Extension(
    "estimator",
    functions={"FedampClassifier": "fedamp.extensions.estimator.classifier:FedampClassifier"},
)
