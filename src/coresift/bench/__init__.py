"""The paper's experiments, each a short file to read from top to bottom."""
