"""The bounds of the five papers under their own names, for comparison and reproduction.

Nothing in here is used to spend a budget: :mod:`fedamp.accounting` evaluates the same mechanisms tighter and with a
certified bracket. These modules share no code with it, so each can be used to check the other. Import the one you need:

* ``partitioning``: Dong, Chen, Özgür 2025, submodels and balanced iteration subsampling
* ``allocation``, ``allocation_sampling``: Feldman, Shenfeld 2025, random allocation, in formulas and by sampling
* ``balls_and_bins``: Chua et al. 2024, the attack and the sampled limits that Feldman and Shenfeld compare with
* ``modelmix``: Xiao, Wan, Devadas 2022, random mixing of the last two states
* ``merging``, ``selection``: Yin, Zaheer, Li, merging of trained models
* ``groups``, ``subsampling``: Schuchardt, Stoian, Kosmala, Günnemann 2024, group privacy under subsampling

The other modules are what these share.
"""
