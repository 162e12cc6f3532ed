"""Decode steps on a GPU, one after another, with the metadata operators of named stacks: ITL and TPOT, measured."""
