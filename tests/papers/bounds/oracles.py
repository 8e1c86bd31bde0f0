"""Closed forms that several tests compare with. They share no code with what is tested."""

import math

from scipy.stats import norm


def call_option(noise_multiplier, strike):
    """``E[(X - strike)+]`` of one Gaussian likelihood ratio (Black and Scholes)."""
    if strike <= 0:
        return 1 - strike
    d = -math.log(strike) * noise_multiplier
    half = 1 / (2 * noise_multiplier)
    return norm.cdf(d + half) - strike * norm.cdf(d - half)
