"""Bounds of the papers that fedamp does not charge, for the grey curves of the figures.

Where a paper's theorem is exact, the figures take the same number from :mod:`fedamp.accounting`. What is left here:

* ``mixtures``: Rényi divergences of Gaussian mixtures at real orders, which fedamp interpolates between whole ones
* ``partitioning``: Dong, Chen, Özgür 2025, Eq. (3), the bound that is cheap to compute
* ``allocation``: Feldman, Shenfeld 2025, Theorems 4.2, 4.6, 4.8 and 4.9
* ``balls_and_bins``: Chua et al. 2024, the attack and the Monte Carlo limit to which that paper compares
* ``modelmix``: Xiao, Wan, Devadas 2022, one coordinate at orders below 2
* ``groups``: Schuchardt et al. 2024, the baselines, and Proposition E.5

Arguments are not checked: only the figures call these functions.
"""
