"""SenseVoice Small from PyTorch checkpoint to a fast, verified, served engine."""

__version__ = "0.1.0"
