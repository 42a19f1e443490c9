"""Fit token vectors to a model, so that their mean follows it. ``run.py`` has the steps."""
