"""Secure aggregation (SecAgg+): words are summed so that nobody learns the words of one node. No Flower in it."""
