"""Cost models trained before the job, on many workloads: corpus, fitting, arrays, the shipped
files (`models/`).
"""
