"""The frozen BERT and its pooling: the definition in NumPy, and the bodies that execute it."""
