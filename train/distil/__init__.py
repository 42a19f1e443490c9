"""A model -> a table of token vectors whose mean follows the model: a ridge regression about each token's own vector.

``run.py`` is the map. The equations are in ``ridge.py``, their sums in ``sums.py``.
"""
