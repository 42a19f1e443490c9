"""The frozen BERT and its pooling."""
