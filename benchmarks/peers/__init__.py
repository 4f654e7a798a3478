"""Samestep and the libraries that people would pick instead, doing the same trainings in the same run.

Every library has its ranks in processes of their own, which wait while the others work; what is compared is
compared within a round. Each gets its best documented settings, and the table names them. Where Samestep is
behind, the table says so. There is no GPU here and no GPU figure is claimed.
"""
