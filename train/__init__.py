"""Training: a corpus and a frozen encoder -> a calibrated model. Needs the ``train`` extra (torch, transformers)."""
