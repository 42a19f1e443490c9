"""Distillation: fit token vectors to a model, so that their mean follows it.

``run.py`` has the steps, ``ridge.py`` the equations, ``sums.py`` their sums.
"""
