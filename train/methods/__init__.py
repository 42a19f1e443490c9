"""Methods of calibration: closed forms, the flow with its layers and its training, chains."""
