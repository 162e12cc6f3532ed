"""What a run leaves behind and what follows from it: records, statistics, trust, comparison, the serving model.
Never imports torch.
"""
