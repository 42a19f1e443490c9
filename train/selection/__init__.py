"""Choose a method without labels."""
