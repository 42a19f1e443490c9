"""Prove, measure and write a fitted model."""
