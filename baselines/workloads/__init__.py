"""Axes, context lengths, decode batches, prefill chunks and Mamba steps that operators share."""
