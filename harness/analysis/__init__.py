"""What is derived from records: statistics, calibration and agreement of the estimators, comparison, modelled ITL and
TPOT. Never imports torch.
"""
