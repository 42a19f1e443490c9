"""From a fitted calibration to a model directory: the proof at export, precision, summary and card."""
