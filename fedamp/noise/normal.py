"""The normal quantile, compiled: Wichura 1988, Algorithm AS 241 (PPND16), to about one part in 10**16."""

# mypy: disable-error-code="no-untyped-def,untyped-decorator"

import math

import numpy as np
from numba import njit

from fedamp.accounting.compiled import compiled

_TAIL = 0.075  # probabilities below it have coefficients of their own


@compiled(nogil=True, fastmath={"contract"}, error_model="numpy")
def quantiles(uniform, out):
    """For each U in [-1/2, 1/2], float64 [n]: the size of the quantile of |U|, with the sign of U.

    Where |U| is less than exp(-25), the result is no number to rely on: further coefficients are left out.
    """
    # All of them as if none was in a tail, and then the tails, one operation after another: the processor takes several
    # at a time where nothing is asked, and a branch that goes either way costs more than all there is to compute.
    places, tails = np.empty(len(uniform) + 1, np.int64), 0
    for place in range(len(uniform)):
        out[place] = _middle(uniform[place])
    for place in range(len(uniform)):
        places[tails] = place
        tails += abs(uniform[place]) < _TAIL
    sizes = np.empty(tails)
    for i in range(tails):
        sizes[i] = math.log(abs(uniform[places[i]]))
    for i in range(tails):
        sizes[i] = _tail(sizes[i])
    for i in range(tails):
        out[places[i]] = math.copysign(sizes[i], uniform[places[i]])


@njit(inline="always")
def _middle(uniform):
    away = math.copysign(0.5 - abs(uniform), uniform)
    r = 0.180625 - away * away
    above = 3.3430575583588128105e4 + r * 2.5090809287301226727e3
    above = 4.5921953931549871457e4 + r * (6.7265770927008700853e4 + r * above)
    above = 1.9715909503065514427e3 + r * (1.3731693765509461125e4 + r * above)
    above = 3.3871328727963666080e0 + r * (1.3314166789178437745e2 + r * above)
    below = 2.8729085735721942674e4 + r * 5.2264952788528545610e3
    below = 2.1213794301586595867e4 + r * (3.9307895800092710610e4 + r * below)
    below = 6.8718700749205790830e2 + r * (5.3941960214247511077e3 + r * below)
    below = 1.0 + r * (4.2313330701600911252e1 + r * below)
    return away * above / below


@njit(inline="always")
def _tail(log_probability):
    r = math.sqrt(-log_probability) - 1.6
    above = 2.27238449892691845833e-2 + r * 7.74545014278341407640e-4
    above = 1.27045825245236838258e0 + r * (2.41780725177450611770e-1 + r * above)
    above = 5.76949722146069140550e0 + r * (3.64784832476320460504e0 + r * above)
    above = 1.42343711074968357734e0 + r * (4.63033784615654529590e0 + r * above)
    below = 5.47593808499534494600e-4 + r * 1.05075007164441684324e-9
    below = 1.48103976427480074590e-1 + r * (1.51986665636164571966e-2 + r * below)
    below = 1.67638483018380384940e0 + r * (6.89767334985100004550e-1 + r * below)
    below = 1.0 + r * (2.05319162663775882187e0 + r * below)
    return above / below
